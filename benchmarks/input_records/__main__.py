"""A benchmark of records per second of all readers, in paired rounds.

python -m benchmarks.input_records
python -m benchmarks.input_records --readers official_lite tfm --rounds 31
"""

import argparse
import pathlib
import tempfile
from collections.abc import Mapping, Sequence

from benchmarks import environments, machine, report, turns
from benchmarks.input_records import records

BASELINE = "official_lite"

# The environment, the worker and its arguments, by the reader's name.
READERS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "official_lite": ("tensorflow", "reader_worker", ("--framework=official_lite",)),
    "official_lite_batched": (
        "tensorflow",
        "reader_worker",
        ("--framework=official_lite", "--batched"),
    ),
    "tfm": ("tfm", "reader_worker", ("--framework=official",)),
    "tfm_batched": ("tfm", "reader_worker", ("--framework=official", "--batched")),
    "grain": ("grain", "grain_worker", ()),
    "grain_2_processes": ("grain", "grain_worker", ("--processes=2",)),
    "grain_array_record": ("grain", "grain_worker", ("--format=array_record",)),
    "torch": ("torch", "torch_worker", ()),
    "torch_2_processes": ("torch", "torch_worker", ("--processes=2",)),
    "memory_official_lite": ("tensorflow", "memory_worker", ("--library=official_lite",)),
    "memory_tf_slices": ("tensorflow", "memory_worker", ("--library=tf_slices",)),
    "memory_tf_gather": ("tensorflow", "memory_worker", ("--library=tf_gather",)),
    "memory_numpy": ("tensorflow", "memory_worker", ("--library=numpy",)),
    "memory_torch": ("torch", "torch_worker", ("--in_memory",)),
}


def tabulate(answers: turns.Answers, num_records: int, num_files: int) -> report.Table:
    """Return a table of medians, fastest first."""
    seconds = turns.medians(answers, "seconds")
    rows = [
        (
            name,
            answers[name][0]["records"] / seconds[name],
            _speed_up(turns.ratio_to(answers, name, BASELINE, "seconds")),
            max(one["peak_memory_mb"] for one in answers[name]),
        )
        for name in sorted(answers, key=lambda name: seconds[name])
    ]
    return report.Table(
        title=f"{num_records:,} records in {num_files} files, batches of {records.BATCH_SIZE}",
        columns=("", "records/s", f"× {BASELINE}", "peak MB"),
        rows=rows,
        note="All contestants shuffle and parse the same examples. `grain_array_record` reads "
        "plain bytes, and `memory_*` reads arrays in memory. Peak memory excludes worker "
        "processes.",
    )


def _speed_up(ratio: float | None) -> float | None:
    return None if ratio is None else 1 / ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", nargs="+", choices=list(READERS), default=list(READERS))
    parser.add_argument(
        "--num_records", type=int, default=200_000, help="The number of records in the files."
    )
    parser.add_argument("--num_files", type=int, default=8)
    parser.add_argument(
        "--records", type=int, default=50_000, help="The number of records in a round."
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=2, help="Rounds that are not counted.")
    parser.add_argument(
        "--data_dir",
        type=pathlib.Path,
        default=pathlib.Path(tempfile.gettempdir()) / "benchmark_records",
    )
    environments.add_arguments(parser)
    report.add_arguments(parser)
    args = parser.parse_args()
    directory = records.write(args.data_dir, args.num_records, args.num_files)
    (directory / "num_records").write_text(str(args.num_records))
    pythons = {
        name: environments.find_python(name, env_dir=args.env_dir, pythons=dict(args.python))
        for name in {READERS[name][0]: None for name in args.readers}
    }
    commands = {}
    for name in args.readers:
        environment, module, arguments = READERS[name]
        commands[name] = [
            pythons[environment],
            "-m",
            f"benchmarks.input_records.{module}",
            f"--directory={directory}",
            f"--records={args.records}",
            f"--rounds={args.rounds + args.warmup}",
            *arguments,
        ]
    with turns.Workers(commands) as workers:
        answers, warmups = workers.run(args.rounds, args.warmup)
    report.Report(
        benchmark="input_records",
        command=report.command_line("input_records"),
        tables=[tabulate(answers, args.num_records, args.num_files)],
        environments=machine.versions_in(pythons),
        measurements={"rounds": answers, "warmup": warmups},
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
