"""Long and large runs stay flat; benchmarks/large_runs.py measures them at full size."""

import json
import pathlib
from typing import Any

import pytest

from tests import commands


def _measure(results_dir: pathlib.Path, *args: str) -> list[list[Any]]:
    command = ["-m", "benchmarks.large_runs", *args, f"--results_dir={results_dir}"]
    done = commands.run(command)
    assert done.returncode == 0, done.stderr
    result = json.loads((results_dir / f"large_runs_{args[0]}.json").read_text())
    rows: list[list[Any]] = result["tables"][0]["rows"]
    return rows


@pytest.mark.slow
def test_memory_files_and_threads_of_a_long_run_are_flat(tmp_path: pathlib.Path) -> None:
    steps = ("--at", "10000", "20000", "60000")
    _, half, full = _measure(tmp_path, "steps", *steps, "--execution=graph")
    assert full[2:4] == half[2:4]
    assert full[1] < half[1] + 20  # MiB; the records of 40,000 steps alone would take more.


@pytest.mark.slow
def test_records_by_the_hundred_thousand_are_read(tmp_path: pathlib.Path) -> None:
    listed, report, size = _measure(tmp_path, "records", "--records=200000")
    assert max(listed[2], report[2]) < 1024
    assert size[2] < 1, "the curves of the report are thinned"
