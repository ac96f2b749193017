"""A benchmark of long and large runs: steps, scalars, records and trials in great numbers.

It shows whether memory, open files, threads, and the time per step, record or trial stay flat.

python -m benchmarks.large_runs steps
python -m benchmarks.large_runs scalars
python -m benchmarks.large_runs records
python -m benchmarks.large_runs trials --storage=sqlite
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from benchmarks import report

_MEBI = 2**20


def resident_mebibytes() -> float:
    """Return the resident memory of this process."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MEBI


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def measure_steps(args: argparse.Namespace) -> report.Table:
    """Train a small model with hooks, all local writers, evaluations and checkpoints."""
    # Imported here, because the other measurements start child processes without TensorFlow.
    from benchmarks import toy_runs
    from official_lite import orbit

    counts: list[tuple[Any, ...]] = []
    began = time.perf_counter()

    class Count(orbit.Hook):
        """A hook that records memory, open files and threads at the given steps."""

        every_n_steps = min(args.at)

        def after_step(self) -> None:
            if self.controller.step in args.at:
                counts.append(
                    (
                        f"{self.controller.step:,}",
                        resident_mebibytes(),
                        num_open_files(),
                        num_threads(),
                        time.perf_counter() - began,
                    )
                )

    last = max(args.at)
    params = toy_runs.create_params(
        assignments=[
            f"runtime.execution={args.execution}",
            f"trainer.train_steps={last}",
            "trainer.steps_per_loop=1000",
            "trainer.summary_interval=100",
            "trainer.checkpoint_interval=5000",
            "trainer.max_to_keep=3",
            "trainer.writers=[jsonl,csv,tensorboard]",
        ]
    )
    task = toy_runs.ToyTask(toy_runs.build_mlp, toy_runs.regression_batches())
    hooks = [Count()]
    with toy_runs.open_run(task, params, hooks=hooks) as runner:
        runner.train()
    return report.Table(
        title=f"A training run of {last:,} steps, execution `{args.execution}`",
        columns=("step", "resident MiB", "open files", "threads", "seconds"),
        rows=counts,
        note="It reports every 100 steps to metrics.json, CSV and event files and saves a "
        "checkpoint every 5,000 steps.",
    )


def measure_scalars(args: argparse.Namespace) -> report.Table:
    """Measure how long each local writer takes to write a record with many scalars."""
    from official_lite import telemetry

    builders: dict[str, Callable[[pathlib.Path], telemetry.Writer]] = {
        "metrics.json": lambda folder: telemetry.JsonLinesWriter(folder / "metrics.json"),
        "CSV": lambda folder: telemetry.CsvWriter(folder / "metrics.csv"),
        "event files": telemetry.TensorBoardWriter,
    }
    rows = []
    for name, build in builders.items():
        with tempfile.TemporaryDirectory() as directory:
            folder = pathlib.Path(directory)
            writer = build(folder)
            values = {f"group_{i % 100}_value_{i}": float(i) for i in range(args.scalars)}
            seconds = []
            for step in range(args.records):
                start = time.perf_counter()
                writer.write(telemetry.Record(step=step, split="train", values=values))
                writer.flush()
                seconds.append(time.perf_counter() - start)
            writer.close()
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        later = sorted(seconds[1:])[len(seconds[1:]) // 2]
        rows.append((name, seconds[0], later, size / args.records / 1024))
    return report.Table(
        title=f"Records of {args.scalars:,} scalars",
        columns=("writer", "seconds, first", "seconds, later", "KiB/record"),
        rows=rows,
    )


def write_records(model_dir: pathlib.Path, count: int) -> None:
    """Write a model directory whose `metrics.json` has `count` records."""
    model_dir.mkdir(parents=True)
    record = {"status": "done", "mode": "train", "global_step": count, "train_steps": count}
    (model_dir / "run.json").write_text(json.dumps(record))
    with (model_dir / "metrics.json").open("w") as file:
        for step in range(1, count + 1):
            values = {"training_loss": 1.0 / step, "accuracy": step / count, "steps_per_second": 9}
            key = {"step": step, "split": "train", "wall_time": 1.7e9 + step / 10}
            file.write(json.dumps({**key, **values}) + "\n")


def measure_records(args: argparse.Namespace) -> report.Table:
    """Measure the commands `runs list` and `report` on a run with many records."""
    rows: list[Sequence[Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        write_records(folder / "run", args.records)
        size = (folder / "run" / "metrics.json").stat().st_size / _MEBI
        output = folder / "report.html"
        commands = {
            "runs list": ["runs", "list", str(folder)],
            "report": ["report", str(folder / "run"), f"--output={output}"],
        }
        for name, arguments in commands.items():
            command = [sys.executable, "-m", "official_lite.tools", *arguments]
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            # This is the peak of all child processes so far, so the smaller command runs first.
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            rows.append((name, time.perf_counter() - start, peak / 1024))
        rows.append(("(size of report.html, MiB)", None, output.stat().st_size / _MEBI))
    return report.Table(
        title=f"A run with {args.records:,} records in metrics.json ({size:.0f} MiB)",
        columns=("command", "seconds", "peak MiB"),
        rows=rows,
    )


def parabola(trial: Any) -> float:
    """Return the value of a trial without training."""
    return float((trial.params["x"] - 0.3) ** 2)


def measure_trials(args: argparse.Namespace) -> report.Table:
    """Run a study whose trials do not train, with several workers."""
    from official_lite.search import search_config, study_runner

    with tempfile.TemporaryDirectory() as directory:
        storage = f"sqlite:///{directory}/study.db" if args.storage == "sqlite" else ""
        config = search_config.SearchConfig(
            {
                "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
                "direction": "minimize",
                "strategy": args.strategy,
                "num_trials": args.trials,
                "num_workers": args.workers,
                "storage": storage,
            }
        )
        start = time.perf_counter()
        study = study_runner.run_study(parabola, config, f"{directory}/study")
        seconds = time.perf_counter() - start
        trials = study.get_trials(deepcopy=False)
    numbers = sorted(trial.number for trial in trials)
    if numbers != list(range(args.trials)) or {t.state.name for t in trials} != {"COMPLETE"}:
        raise RuntimeError(
            f"The study has {len(numbers)} trials; expected the trials 0 to {args.trials - 1}, "
            "each once and complete."
        )
    ends = sorted(t.datetime_complete for t in trials if t.datetime_complete is not None)
    rows: list[Sequence[Any]] = []
    tenth = len(ends) // 10
    for part in (1, 5, 9):
        taken = (ends[(part + 1) * tenth - 1] - ends[part * tenth]).total_seconds()
        rows.append((f"{part * tenth:,} to {(part + 1) * tenth:,}", 1e3 * taken / tenth))
    rows.append(("all, with the start of the workers", 1e3 * seconds / args.trials))
    return report.Table(
        title=f"{args.trials:,} trials by {args.workers} workers, storage {args.storage}",
        columns=("trials", "ms/trial"),
        rows=rows,
        note=f"Strategy `{args.strategy}`. Each trial is present exactly once, and complete.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.set_defaults(storage="")
    kinds = parser.add_subparsers(dest="kind", required=True)
    steps = kinds.add_parser("steps")
    steps.add_argument("--at", type=int, nargs="*", default=[20_000, 100_000, 200_000])
    steps.add_argument("--execution", default="xla_loop")
    steps.set_defaults(measure=measure_steps)
    scalars = kinds.add_parser("scalars")
    scalars.add_argument("--scalars", type=int, default=10_000)
    scalars.add_argument("--records", type=int, default=20)
    scalars.set_defaults(measure=measure_scalars)
    records = kinds.add_parser("records")
    records.add_argument("--records", type=int, default=1_000_000)
    records.set_defaults(measure=measure_records)
    trials = kinds.add_parser("trials")
    trials.add_argument("--trials", type=int, default=5000)
    trials.add_argument("--workers", type=int, default=8)
    trials.add_argument("--storage", choices=("journal", "sqlite"), default="journal")
    trials.add_argument("--strategy", default="random")
    trials.set_defaults(measure=measure_trials)
    for one in (steps, scalars, records, trials):
        report.add_arguments(one)
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    name = "_".join(filter(None, ("large_runs", args.kind, args.storage)))
    report.Report(
        benchmark=name, command=report.command_line("large_runs"), tables=[args.measure(args)]
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
