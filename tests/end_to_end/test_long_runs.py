"""Long, large and repeatedly resumed runs use constant resources and stay exact."""

import json
import os
import pathlib
import subprocess
import sys
import threading
from typing import Any

import pytest
import tensorflow as tf

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.core import exp_factory, task_factory, train_lib
from tests import commands, row_files


def _resume(model_dir, train_steps):
    params = exp_factory.get_exp_config("vision/digits_mlp")
    params.trainer.override(
        {
            "train_steps": train_steps,
            "steps_per_loop": 3,
            "checkpoint_interval": 3,
            "validation_interval": 3,
            "validation_steps": 1,
            "summary_interval": 3,
        }
    )
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=str(model_dir))
    train_lib.run_experiment(strategy, task, "train_and_eval", params, str(model_dir))


def _open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
def test_repeated_resumes_do_not_accumulate_threads_open_files_or_checkpoints(tmp_path):
    counts = []
    for number in range(1, 17):
        _resume(tmp_path, train_steps=3 * number)
        counts.append((threading.active_count(), _open_files()))
    threads, open_files = zip(*counts[4:], strict=True)
    # The threads and files of the previous run may still be closing.
    assert max(threads) - min(threads) <= 2, threads
    assert max(open_files) - min(open_files) <= 4, open_files
    assert len(list(tmp_path.glob("ckpt-*.index"))) == 5
    assert len(list(tmp_path.glob("train/events*"))) == 16
    assert not list(tmp_path.glob("*_temp*"))
    lines = (tmp_path / "metrics.json").read_text().splitlines()
    assert len(lines) == 32


def _measure(results_dir: pathlib.Path, *args: str) -> list[list[Any]]:
    command = ["-m", "benchmarks.large_runs", *args, f"--results_dir={results_dir}"]
    done = commands.run(command)
    assert done.returncode == 0, done.stderr
    result = json.loads((results_dir / f"large_runs_{args[0]}.json").read_text())
    rows: list[list[Any]] = result["tables"][0]["rows"]
    return rows


@pytest.mark.slow
def test_memory_use_and_numbers_of_open_files_and_threads_do_not_grow_in_a_long_run(
    tmp_path: pathlib.Path,
) -> None:
    steps = ("--at", "10000", "20000", "60000")
    _, half, full = _measure(tmp_path, "steps", *steps, "--execution=graph")
    assert full[2:4] == half[2:4]
    assert full[1] < half[1] + 20  # MiB; the records of 40,000 steps alone would take more.


@pytest.mark.slow
def test_listing_and_reporting_a_run_with_200000_records_needs_less_than_1_gib_of_memory(
    tmp_path: pathlib.Path,
) -> None:
    listed, report, size = _measure(tmp_path, "records", "--records=200000")
    assert max(listed[2], report[2]) < 1024
    assert size[2] < 1, "the curves of the report are thinned"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", row_files.NAMES)
def test_killed_run_that_reads_table_files_equals_an_uninterrupted_one(name):
    # The benchmark forks, so it runs in a process of its own, without the threads of other tests.
    command = [sys.executable, "-m", "benchmarks.source_kills", "--kills=2", f"--formats={name}"]
    done = subprocess.run(command, cwd=commands.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "2 kills after" in done.stdout
    assert "equal bit for bit" in done.stdout
