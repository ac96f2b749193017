"""A benchmark of step time by number of workers and size of gradients, and of a cost model.

A step of n workers takes the time of n independent processes on the same machine, plus the time of
a ring all-reduce of the gradients::

    t(n) = alone(n) + 2 (n - 1) latency + 2 (n - 1) / n * bytes / bandwidth

Latency and bandwidth are fitted to two workers, and checked on more.

python -m benchmarks.workers
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import portpicker

from benchmarks import report, turns

# The number of warm-up rounds, which are not counted.
_WARMUP = 2


def seconds_per_step(
    num_processes: int, width: int, args: argparse.Namespace, *, together: bool
) -> float:
    """Return the seconds per step: the mean over the processes of their medians over the rounds."""
    hosts = [f"localhost:{portpicker.pick_unused_port()}" for _ in range(num_processes)]
    command = [
        *(sys.executable, "-m", "benchmarks.workers.worker", f"--width={width}"),
        *(f"--steps={args.steps}", f"--rounds={args.rounds + _WARMUP}"),
    ]
    with contextlib.ExitStack() as stack:
        processes = []
        for index in range(num_processes):
            cluster = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
            environment = {"TF_CONFIG": json.dumps(cluster)} if together else {}
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=turns.REPOSITORY,
                env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **environment},
            )
            stack.callback(process.kill)
            processes.append(process)
        printed = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(
            "The workers ended with the exit codes "
            f"{[process.returncode for process in processes]}; expected 0 for all of them."
        )
    return statistics.mean(_median(text) for text in printed)


def _median(printed: str) -> float:
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return statistics.median(one["seconds_per_step"] for one in lines[_WARMUP:])


def gradient_bytes(width: int) -> int:
    """Return the size of the gradients of the model `toy_runs.build_mlp`."""
    return 4 * (width * width + 2 * width + 1)


def terms(num_workers: int, size: int) -> tuple[float, float]:
    """Return the number of consecutive messages, and the bytes that each link carries."""
    return 2.0 * (num_workers - 1), 2 * (num_workers - 1) / num_workers * size


def fit(extra: Mapping[tuple[int, int], float]) -> tuple[float, float]:
    """Fit latency in seconds, and seconds per byte, to the extra seconds of two workers.

    Relative errors have equal weight, so that the largest gradients do not dominate.
    """
    rows = [
        (*np.array(terms(n, gradient_bytes(width))) / seconds, 1.0)
        for (n, width), seconds in extra.items()
        if n == 2 and seconds > 0
    ]
    table = np.array(rows)
    (latency, per_byte), *_ = np.linalg.lstsq(table[:, :2], table[:, 2], rcond=None)
    return float(latency), float(per_byte)


def tabulate(
    together: Mapping[tuple[int, int], float], alone: Mapping[tuple[int, int], float]
) -> report.Table:
    extra = {key: together[key] - alone[key] for key in together if key[0] > 1}
    latency, per_byte = fit(extra)
    rows: list[Sequence[report.Cell]] = []
    for (num_workers, width), seconds in sorted(together.items()):
        waits, size = terms(num_workers, gradient_bytes(width))
        by_model = alone[num_workers, width] + waits * latency + size * per_byte
        rows.append(
            (
                str(num_workers),
                gradient_bytes(width) / 1e6,
                1e3 * alone[num_workers, width],
                1e3 * seconds,
                1e3 * by_model,
                by_model / seconds,
            )
        )
    return report.Table(
        title="Milliseconds per step",
        columns=("workers", "gradients MB", "alone", "together", "model", "model ÷ together"),
        rows=rows,
        note=f"Fitted to two workers: {1e6 * latency:.0f} µs per message, "
        f"{1e-6 / per_byte:,.0f} MB/s. Alone: the same number of processes at once, without a "
        "cluster.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 512, 1024, 2048])
    parser.add_argument("--steps", type=int, default=30, help="Steps in a round.")
    parser.add_argument("--rounds", type=int, default=7)
    report.add_arguments(parser)
    args = parser.parse_args()
    together, alone = {}, {}
    for width in args.widths:
        for count in args.workers:
            alone[count, width] = seconds_per_step(count, width, args, together=False)
            together[count, width] = (
                seconds_per_step(count, width, args, together=True)
                if count > 1
                else alone[count, width]
            )
    measurements = {
        name: {f"{count}/{width}": value for (count, width), value in seconds.items()}
        for name, seconds in (("together", together), ("alone", alone))
    }
    report.Report(
        benchmark="workers",
        command=report.command_line("workers"),
        tables=[tabulate(together, alone)],
        measurements=measurements,
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
