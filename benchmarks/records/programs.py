"""Programs that each train to completion in a separate process, and the data that they read."""

import argparse
import json
import pathlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import turns
from benchmarks.records.known_numbers import DATA_SETS, Record
from official_lite.common import errors, suggestions

__all__ = ["REFERENCES", "add_data_argument", "check_data", "read_lines", "run_to_end"]

REFERENCES = pathlib.Path(__file__).parent / "references"


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--data`, which may be repeated."""
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        type=_data_argument,
        metavar="NAME=DIR",
        help=f"The directory of a data set: {', '.join(DATA_SETS)}.",
    )


def _data_argument(text: str) -> tuple[str, pathlib.Path]:
    name, separator, directory = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=DIR, such as ml-100k=/data/ml-100k")
    return name, pathlib.Path(directory).expanduser().resolve()


def check_data(records: Sequence[Record], data: Mapping[str, pathlib.Path]) -> None:
    """Check that the directories of all data sets are given and exist.

    Raises:
        errors.ConfigValueError: If one is missing.
        errors.UnknownNameError: If a given data set is unknown.
    """
    for name, directory in data.items():
        if name not in DATA_SETS:
            raise errors.UnknownNameError(
                f"There is no data set {name!r}. {suggestions.did_you_mean(name, DATA_SETS)}"
            )
        if not directory.is_dir():
            raise errors.ConfigValueError(
                f"--data {name}={directory} is not a directory; expected a directory with "
                f"{DATA_SETS[name]}."
            )
    for record in records:
        if record.data and record.data not in data:
            raise errors.ConfigValueError(
                f"{record.experiment} requires data. Pass --data {record.data}=DIR, a directory "
                f"with {DATA_SETS[record.data]}."
            )


def run_to_end(command: Sequence[str]) -> tuple[float, str]:
    """Run a command in the repository, and return its duration in seconds and its output.

    Raises:
        RuntimeError: If the command fails.
    """
    began = time.perf_counter()
    finished = subprocess.run(command, cwd=turns.REPOSITORY, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if finished.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with exit code {finished.returncode}:\n"
            f"{finished.stderr[-2000:]}"
        )
    return seconds, finished.stdout


def read_lines(output: str) -> list[dict[str, Any]]:
    """Return the lines of JSON in the output of a reference."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
