"""Benchmark results as files and as tables.

python -m benchmarks.report --results_dir=benchmarks/results --output=benchmarks/RESULTS.md
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import machine

__all__ = ["Report", "Table", "add_arguments", "command_line", "render"]

RESULTS_DIR = pathlib.Path(__file__).parent / "results"

# The titles of the sections, in display order.
TITLES: Mapping[str, str] = {
    "steps": "Steps",
    "records": "Known numbers on real data",
    "study": "A study with pruning",
    "nas_random": "Architecture search",
    "input_records": "Reading records",
    "start_up": "Start-up",
    "checkpoint_stall": "Checkpoints: how long training stands still",
    "exactness": "What exact resume costs",
    "overhead": "Hooks, metrics and writers",
    "scaling": "Many variables, metrics and steps",
    "embedding_rows": "Large embeddings",
    "data_service": "A tf.data service",
    "strategies": "Two replicas",
    "virtual_replicas": "What virtual replicas cost",
    "workers": "More workers",
}

_PATH_OPTIONS = (
    "--results_dir",
    "--env_dir",
    "--python",
    "--data_dir",
    "--directory",
    "--data",
)

Cell = str | float | int | None


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of numbers.

    Attributes:
        title: What was measured.
        columns: The column headings, with units.
        rows: One cell for each column; None is shown as a dash.
        note: What a reader needs to know about the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of a benchmark.

    Attributes:
        benchmark: The name of its module.
        command: The command that was run.
        tables: The tables to show.
        environments: The versions in the other environments that it used.
        measurements: Every single measurement, for details beyond the tables.
        machine: The machine and the date.
    """

    benchmark: str
    command: str
    tables: Sequence[Table]
    environments: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    measurements: Any = None
    machine: Mapping[str, str] = dataclasses.field(default_factory=machine.describe)

    def publish(self, directory: pathlib.Path) -> None:
        """Print the tables, and write `<benchmark>.json`."""
        for table in self.tables:
            print(f"\n{_table(table)}")
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.benchmark}.json"
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        print(f"\nWritten to {path}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--results_dir`."""
    parser.add_argument("--results_dir", type=pathlib.Path, default=RESULTS_DIR)


def command_line(benchmark: str) -> str:
    """Return the command line of this process without options that contain local paths."""
    words = [f"python -m benchmarks.{benchmark}"]
    is_path = False
    for argument in sys.argv[1:]:
        names_path = argument.split("=")[0] in _PATH_OPTIONS
        if not is_path and not names_path:
            words.append(argument)
        is_path = names_path and "=" not in argument
    return " ".join(words)


def render(directory: pathlib.Path) -> str:
    """Return a Markdown page of all results in a directory."""
    reports = [
        _load(json.loads(path.read_text()))
        for name in TITLES
        if (path := directory / f"{name}.json").exists()
    ]
    return "\n\n".join(["# Results", *map(_chapter, reports)]) + "\n"


def _load(content: dict[str, Any]) -> Report:
    tables = [Table(**table) for table in content.pop("tables")]
    return Report(tables=tables, **content)


def _chapter(report: Report) -> str:
    parts = [
        f"## {TITLES[report.benchmark]}",
        f"    {report.command}",
        _facts(report.machine),
        *(f"{name}: {_facts(found)}" for name, found in report.environments.items() if found),
        *map(_table, report.tables),
    ]
    return "\n\n".join(parts)


def _facts(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _table(table: Table) -> str:
    texts = [list(table.columns), *([_text(cell) for cell in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = [
        "| " + " | ".join(_align(text, width, index) for index, (text, width) in cells) + " |"
        for cells in (enumerate(zip(row, widths, strict=True)) for row in texts)
    ]
    # The names in the first column are left-aligned, and the numbers are right-aligned.
    rules = ["-" * (width + 1) + ("-" if index == 0 else ":") for index, width in enumerate(widths)]
    lines.insert(1, "|" + "|".join(rules) + "|")
    note = [table.note] if table.note else []
    return "\n\n".join([f"**{table.title}**", "\n".join(lines), *note])


def _align(text: str, width: int, index: int) -> str:
    return text.ljust(width) if index == 0 else text.rjust(width)


def _text(cell: Cell) -> str:
    if cell is None:
        return "–"
    if not isinstance(cell, float):
        return str(cell)
    # Benchmarks are not accurate to more than three digits.
    if abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    page = render(args.results_dir)
    if args.output:
        args.output.write_text(page)
    else:
        print(page, end="")


if __name__ == "__main__":
    main()
