"""A benchmark of experiments against the programs that users would run instead.

python -m benchmarks.records language/char_gpt --data tinyshakespeare=/data

Each program trains to its end in a new process, ours and the reference in turn. The time to the
target is measured from the start of the process to the first evaluation that reaches the target.
"""

import argparse
import dataclasses
import math
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks import environments, machine, report
from benchmarks.records import programs
from benchmarks.records.known_numbers import Record, find_records
from official_lite.common import errors, suggestions
from official_lite.run import run_reading

__all__ = [
    "Training",
    "fill_in",
    "measure",
    "run_experiment",
    "run_reference",
    "tabulate",
]

# The default `num_folds` of tables.
NUM_FOLDS = 5

OURS, REFERENCE = "ours", "reference"


@dataclasses.dataclass(frozen=True)
class Training:
    """The results of one program in its process.

    Attributes:
        value: The metric's value in the last evaluation.
        seconds: The seconds from the start of the process to its end.
        seconds_to_target: The seconds from the start of the process to the first evaluation that
            reached the target; None if no evaluation did.
    """

    value: float
    seconds: float
    seconds_to_target: float | None


# The results by record and program, with one element per seed.
Measurements = Mapping[str, Mapping[str, Sequence[Training]]]


def fill_in(flag: str, data_dir: pathlib.Path | None, seed: int) -> str:
    """Return a flag with the directory in place of `{data}`, and a fold in place of `{fold}`."""
    return flag.replace("{data}", str(data_dir)).replace("{fold}", str(seed % NUM_FOLDS))


def run_experiment(record: Record, data_dir: pathlib.Path | None, seed: int) -> Training:
    """Train and evaluate the experiment with `train.py`."""
    with tempfile.TemporaryDirectory() as model_dir:
        command = [
            sys.executable,
            "train.py",
            f"--experiment={record.experiment}",
            "--mode=train_and_eval",
            f"--model_dir={model_dir}",
            f"--set=runtime.seed={seed}",
            *(fill_in(flag, data_dir, seed) for flag in record.flags),
        ]
        began = time.time()
        seconds, _ = programs.run_to_end(command)
        run = run_reading.read_run(str(pathlib.Path(model_dir) / record.phase))
    metrics = run.series.get("validation", {})
    if record.metric not in metrics:
        raise RuntimeError(
            f"{record.experiment} reports no validation metric {record.metric!r}. "
            f"{suggestions.did_you_mean(record.metric, metrics)}"
        )
    series = metrics[record.metric]
    times = [wall_time - began for wall_time in series.wall_times if wall_time is not None]
    return _training(record, seconds, list(zip(times, series.values, strict=True)))


def run_reference(
    record: Record, python: str, data_dir: pathlib.Path | None, seed: int
) -> Training:
    """Train with the reference program.

    Args:
        record: The record.
        python: The interpreter of the reference's environment.
        data_dir: The directory of the data set.
        seed: The seed.
    """
    command = [python, str(programs.REFERENCES / record.reference), f"--seed={seed}"]
    if data_dir:
        command.append(f"--data_dir={data_dir}")
    command += [fill_in(flag, data_dir, seed) for flag in record.reference_flags]
    seconds, output = programs.run_to_end(command)
    lines = programs.read_lines(output)
    name = record.reference_metric or record.metric
    values = [(line["seconds"], line[name]) for line in lines if name in line]
    if not values:
        raise RuntimeError(
            f"{record.reference} printed no line of JSON with {name!r}: {output[-500:]!r}"
        )
    return _training(record, seconds, values)


def _training(
    record: Record, seconds: float, evaluations: Sequence[tuple[float, float]]
) -> Training:
    reached = (when for when, value in evaluations if record.is_reached_by(value))
    return Training(evaluations[-1][1], seconds, next(reached, None))


def measure(
    record: Record, python: str, data_dir: pathlib.Path | None, seeds: Sequence[int]
) -> dict[str, list[Training]]:
    """Run both programs in turn with each seed; every second seed begins with the reference."""
    programs: dict[str, Callable[[int], Training]] = {
        OURS: lambda seed: run_experiment(record, data_dir, seed)
    }
    if record.reference:
        programs[REFERENCE] = lambda seed: run_reference(record, python, data_dir, seed)
    found: dict[str, list[Training]] = {name: [] for name in programs}
    for index, seed in enumerate(seeds):
        for name in list(programs)[:: -1 if index % 2 else 1]:
            training = programs[name](seed)
            found[name].append(training)
            target = training.seconds_to_target
            print(
                f"{record.name} seed {seed} {name}: {record.metric} {training.value:.4f}, "
                + ("target not reached" if target is None else f"target after {target:.1f} s")
                + f", {training.seconds:.1f} s",
                flush=True,
            )
    return found


def tabulate(records: Sequence[Record], found: Measurements) -> list[report.Table]:
    """Return a table of the final numbers and a table of the seconds."""
    shown = [record for record in records if record.name in found]
    return [
        report.Table(
            title="Final numbers",
            columns=("", "metric", "target", OURS, "spread", REFERENCE, "spread"),
            rows=[_numbers(record, found[record.name]) for record in shown],
            note="The median over the seeds, the lowest and the highest value.",
        ),
        report.Table(
            title="Seconds from the start of the process",
            columns=(
                "",
                "ours to target",
                "reference to target",
                "× reference",
                "at most",
                "ours to end",
                "reference to end",
            ),
            rows=[_seconds(record, found[record.name]) for record in shown],
            note="Medians over the seeds, and the median of the ratios of paired runs.",
        ),
    ]


def _numbers(record: Record, found: Mapping[str, Sequence[Training]]) -> list[report.Cell]:
    cells: list[report.Cell] = [record.name, record.metric, f"{record.target:g}"]
    for name in (OURS, REFERENCE):
        values = [training.value for training in found.get(name, ())]
        cells += (
            [f"{statistics.median(values):.4f}", f"{min(values):.4f} to {max(values):.4f}"]
            if values
            else [None, None]
        )
    return cells


def _seconds(record: Record, found: Mapping[str, Sequence[Training]]) -> list[report.Cell]:
    ours, reference = found[OURS], found.get(REFERENCE, ())
    ratios = [
        _or_never(one.seconds_to_target) / other.seconds_to_target
        for one, other in zip(ours, reference, strict=False)
        if other.seconds_to_target is not None
    ]
    return [
        record.name,
        _median([_or_never(one.seconds_to_target) for one in ours]),
        _median([_or_never(one.seconds_to_target) for one in reference]),
        # If the reference misses the target with any seed, no ratio is shown for the record.
        _median(ratios) if len(ratios) == len(ours) else None,
        record.bar,
        _median([one.seconds for one in ours]),
        _median([one.seconds for one in reference]),
    ]


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def _median(values: Sequence[float]) -> float | str | None:
    if not values:
        return None
    median = statistics.median(values)
    return median if math.isfinite(median) else "never"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="The records; all of them by default.")
    parser.add_argument("--seeds", type=int, default=3, help="The number of seeds.")
    programs.add_data_argument(parser)
    environments.add_arguments(parser)
    report.add_arguments(parser)
    args = parser.parse_args(argv)
    data = dict(args.data)
    try:
        records = find_records(args.names)
        programs.check_data(records, data)
    except errors.ConfigError as error:
        parser.error(str(error))
    pythons = {
        record.environment: environments.find_python(
            record.environment, env_dir=args.env_dir, pythons=dict(args.python)
        )
        for record in records
        if record.reference
    }
    found = {}
    for record in records:
        python = pythons.get(record.environment, sys.executable)
        seeds = range(1, args.seeds + 1)
        try:
            found[record.name] = measure(record, python, data.get(record.data), seeds)
        except RuntimeError as error:
            # A failure must not discard the results of other records, which take long to measure.
            print(f"{record.name} failed and is omitted: {error}", file=sys.stderr)
    report.Report(
        benchmark="records",
        command=report.command_line("records"),
        tables=tabulate(records, found),
        environments=machine.versions_in(pythons),
        measurements={
            name: {program: [*map(dataclasses.asdict, runs)] for program, runs in by.items()}
            for name, by in found.items()
        },
    ).publish(args.results_dir)
    if len(found) < len(records):
        sys.exit(1)


if __name__ == "__main__":
    main()
