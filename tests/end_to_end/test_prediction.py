"""Predictions whose processes are killed."""

import json
import pathlib
import signal

import portpicker
import pytest

from official_lite.prediction import output
from tests import commands

# The task of the prediction benchmark, whose process sends itself SIGNAL when it reads batch
# LAST_BATCH, as soon as ROWS rows are written.
DYING = """
import os
import signal
import time

import numpy as np
import tensorflow as tf

from benchmarks import prediction
from official_lite.prediction import output

build_inputs = prediction.RowsTask.build_inputs
last_batch = int(os.environ.get("LAST_BATCH", "-1"))


def end_at(number, features):
    if number == last_batch:
        while output.read_progress(os.environ["OUTPUT"]).rows < int(os.environ["ROWS"]):
            time.sleep(0.01)
        os.kill(os.getpid(), int(os.environ.get("SIGNAL", signal.SIGKILL)))
    return features


def build_dying_inputs(self, params, input_context=None):
    dataset = build_inputs(self, params, input_context)
    if params.is_training or last_batch < 0:
        return dataset
    spec = dataset.element_spec
    return dataset.enumerate().map(
        lambda number, features: tf.ensure_shape(
            tf.numpy_function(end_at, [number, features], tf.float32), spec.shape
        )
    )


prediction.RowsTask.build_inputs = build_dying_inputs
"""


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["jsonl", "parquet", "tfrecord"])
def test_prediction_killed_five_times_writes_the_same_files_as_an_uninterrupted_one(
    file_format: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "dying.py").write_text(DYING)

    counts: list[dict[str, int]] = []

    def start(mode: str, name: str, last_batch: int = -1) -> int:
        command = [
            *("-m", "official_lite.tools", "train", f"--import={tmp_path / 'dying.py'}"),
            *("--experiment=benchmarks/prediction", f"--mode={mode}"),
            f"--model_dir={tmp_path / 'run'}",
            f"--set=prediction.output_dir={tmp_path / name}",
            *("--set=task.num_rows=2950", "--set=task.validation_data.global_batch_size=100"),
            *("--set=prediction.rows_per_shard=250", f"--set=prediction.format={file_format}"),
        ]
        # The number of rows in the shards that the batches before `last_batch` fill completely.
        rows = last_batch * 100 // 250 * 250
        env = {"LAST_BATCH": last_batch, "OUTPUT": tmp_path / name, "ROWS": rows}
        done = commands.run(command, env={key: str(value) for key, value in env.items()})
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        if mode == "predict" and not done.returncode:
            counts.append(json.loads(done.stdout.splitlines()[-1]))
        return done.returncode

    assert start("train", "none") == 0
    assert start("predict", "unbroken") == 0
    for last_batch, num_rows in ((2, 0), (9, 750), (14, 1250), (21, 2000), (28, 2750)):
        assert start("predict", "killed", last_batch) == -signal.SIGKILL
        assert output.read_progress(str(tmp_path / "killed")).rows == num_rows
    assert start("predict", "killed") == 0
    assert [(each["rows"], each["new_rows"]) for each in counts] == [(2950, 2950), (2950, 200)]
    unbroken, killed = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("unbroken", "killed")
    )
    assert len(unbroken) == 13
    assert killed == unbroken


@pytest.mark.slow
def test_two_interrupted_prediction_workers_write_the_same_files_as_two_replicas(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    options = [
        *("train.py", f"--import={tmp_path / 'dying.py'}", "--experiment=benchmarks/prediction"),
        *(f"--model_dir={tmp_path / 'run'}", "--set=prediction.format=jsonl"),
        # The last batch has an example for the first of two replicas only.
        *("--set=task.num_rows=7901", "--set=task.validation_data.global_batch_size=100"),
        "--set=prediction.rows_per_shard=250",
    ]
    strategy = "--set=runtime.distribution_strategy="
    mirrored = [f"{strategy}mirrored", "--set=runtime.devices=[CPU:0,CPU:1]"]
    expected = tmp_path / "expected"
    for mode in ("train", "predict"):
        place = [f"--mode={mode}", *mirrored, f"--set=prediction.output_dir={expected}"]
        done = commands.run([*options, *place])
        assert done.returncode == 0, done.stderr
    places = [f"127.0.0.1:{portpicker.pick_unused_port()}" for _ in range(2)]
    written = tmp_path / "written"

    def predict(ending: int, last_batch: int, number: signal.Signals = signal.SIGKILL) -> list[int]:
        """Return the exit codes of both workers; one gets a signal when it reads its last batch."""
        rows = last_batch * 100 // 250 * 250
        workers = []
        for index in range(2):
            command = [*options, "--mode=predict", f"--set=prediction.output_dir={written}"]
            command += [f"{strategy}multi_worker_mirrored", f"--set=runtime.task_index={index}"]
            command.append(f"--set=runtime.worker_hosts={','.join(places)}")
            # Each worker reads the batches of both.
            last = 2 * last_batch + index if index == ending else -1
            env = {"LAST_BATCH": last, "OUTPUT": written, "ROWS": rows, "SIGNAL": int(number)}
            given = {key: str(value) for key, value in env.items()}
            workers.append(commands.Command(command, env=given))
        return [worker.wait() for worker in workers]

    assert predict(0, 9) == [-signal.SIGKILL, 7]
    assert output.read_progress(str(written)).rows == 750
    assert predict(1, 14) == [7, -signal.SIGKILL]
    assert predict(1, 21, signal.SIGTERM) == [42, 42]
    assert output.read_progress(str(written)).rows >= 2000
    # The second time, nothing is left to do.
    assert predict(-1, 0) == predict(-1, 0) == [0, 0]
    names = sorted(path.name for path in written.glob("predictions-*"))
    assert len(names) == 32
    for name in names:
        assert (written / name).read_bytes() == (expected / name).read_bytes()
