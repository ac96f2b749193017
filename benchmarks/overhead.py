"""A benchmark of the extra cost of 0, 1, 4 and 16 hooks, metrics and writers, and of goodput.

python -m benchmarks.overhead
"""

import argparse
import functools
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Mapping

import keras
from absl import logging

from benchmarks import paired, report, toy_runs
from official_lite import orbit, telemetry
from official_lite.common import goodput

COUNTS = (0, 1, 4, 16)
STEPS = 2000
STEPS_PER_LOOP = 1000
# The interval in steps of rarely run hooks and of reports.
INTERVAL = 100
# This number of steps takes several seconds, which is needed because goodput is recorded only once
# per second.
GOODPUT_STEPS = 20_000


class Look(orbit.Hook):
    """A hook that reads the current step, as most hooks do."""

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps
        self.seen = 0

    def after_step(self) -> None:
        self.seen += self.iter


def create_metrics(count: int) -> list[keras.metrics.Metric]:
    return [keras.metrics.MeanAbsoluteError(name=f"error_{index}") for index in range(count)]


def build_run(
    directory: pathlib.Path,
    *,
    hooks: int = 0,
    every_n_steps: int = 1,
    metrics: int = 0,
    writers: int = 0,
    log_interval: int | None = None,
    steps: int = STEPS,
) -> Callable[[], None]:
    """Return a function that trains `steps` further steps of a small MLP."""
    task = toy_runs.ToyTask(
        toy_runs.build_mlp,
        toy_runs.regression_batches(),
        functools.partial(create_metrics, metrics),
    )
    directory.mkdir(parents=True)
    controller = toy_runs.build_controller(
        task,
        toy_runs.create_params(),
        steps_per_loop=STEPS_PER_LOOP,
        log_interval=log_interval,
        hooks=[Look(every_n_steps) for _ in range(hooks)],
        writers=[
            telemetry.JsonLinesWriter(str(directory / f"{index}.json")) for index in range(writers)
        ],
    )
    return functools.partial(toy_runs.train_further, controller, steps)


def create_series(directory: pathlib.Path) -> Mapping[str, Mapping[str, Callable[[], None]]]:
    """Return the runs to measure, by the varied quantity and its count."""
    kinds: dict[str, Callable[[int], dict[str, int]]] = {
        "hooks, every step": lambda count: {"hooks": count},
        f"hooks, every {INTERVAL} steps": lambda count: {
            "hooks": count,
            "every_n_steps": INTERVAL,
        },
        "metrics": lambda count: {"metrics": count},
        f"writers of JSON lines, every {INTERVAL} steps": lambda count: {
            "writers": count,
            "log_interval": INTERVAL,
        },
    }
    return {
        kind: {
            str(count): build_run(directory / str(number) / str(count), **arguments(count))
            for count in COUNTS
        }
        for number, (kind, arguments) in enumerate(kinds.items())
    }


def create_goodput_runs(directory: pathlib.Path) -> Mapping[str, Callable[[], None]]:
    """Return two functions that train, one without and one with goodput recording."""
    # Both train the same model, because two equal runs may permanently differ in speed.
    train = build_run(directory / "run", steps=GOODPUT_STEPS)

    def record() -> None:
        with goodput.Goodput(str(directory / goodput.NAME)):
            train()

    return {"unrecorded": train, "recorded": record}


def tabulate_goodput(seconds: Mapping[str, list[float]]) -> report.Table:
    microseconds = [1e6 * statistics.median(times) / GOODPUT_STEPS for times in seconds.values()]
    ratio = paired.ratio(seconds, "recorded", "unrecorded")
    return report.Table(
        title="µs per step of the same MLP, without and with a goodput record every second",
        columns=("", "unrecorded", "recorded", "recorded ÷ unrecorded"),
        rows=[("goodput", *microseconds, f"{ratio:.4f}")],
    )


def tabulate(measured: Mapping[str, Mapping[str, list[float]]]) -> report.Table:
    rows: list[tuple[report.Cell, ...]] = []
    for kind, seconds in measured.items():
        base = str(COUNTS[0])
        microseconds = [1e6 * statistics.median(times) / STEPS for times in seconds.values()]
        rows.append((kind, *microseconds, paired.ratio(seconds, str(COUNTS[-1]), base)))
    return report.Table(
        title="µs per step of a small MLP, by the number of hooks, metrics or writers",
        columns=("", *map(str, COUNTS), f"{COUNTS[-1]} ÷ {COUNTS[0]}"),
        rows=rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    report.add_arguments(parser)
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        of_goodput = paired.time_in_turn(create_goodput_runs(pathlib.Path(directory)), args.rounds)
        measured = {
            kind: paired.time_in_turn(variants, args.rounds)
            for kind, variants in create_series(pathlib.Path(directory)).items()
        }
    report.Report(
        benchmark="overhead",
        command=report.command_line("overhead"),
        tables=[tabulate(measured), tabulate_goodput(of_goodput)],
        measurements={**measured, "goodput": of_goodput},
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
