"""Predictions of processes that are killed."""

import json
import pathlib
import signal

import pytest

from tests import commands

# The rows of the benchmark, which end the process at a batch.
DYING = """
import os
import signal

import numpy as np
import tensorflow as tf

from benchmarks import prediction

build_inputs = prediction.RowsTask.build_inputs
last_batch = int(os.environ.get("LAST_BATCH", "-1"))


def end_at(number, features):
    if number == last_batch:
        os.kill(os.getpid(), signal.SIGKILL)
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
def test_killed_five_times_it_leaves_the_files_of_an_unbroken_one(
    file_format: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "dying.py").write_text(DYING)

    def start(mode: str, output: str, last_batch: int = -1) -> int:
        command = [
            *("-m", "official_lite.tools", "train", f"--import={tmp_path / 'dying.py'}"),
            *("--experiment=benchmarks/prediction", f"--mode={mode}"),
            f"--model_dir={tmp_path / 'run'}",
            f"--set=prediction.output_dir={tmp_path / output}",
            *("--set=task.num_rows=2950", "--set=task.validation_data.global_batch_size=100"),
            *("--set=prediction.rows_per_shard=250", f"--set=prediction.format={file_format}"),
        ]
        done = commands.run(command, env={"LAST_BATCH": str(last_batch)})
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        if mode == "predict" and not done.returncode:
            assert json.loads(done.stdout.splitlines()[-1])["rows"] == 2950
        return done.returncode

    assert start("train", "none") == 0
    assert start("predict", "unbroken") == 0
    for last_batch in (2, 9, 14, 21, 28):
        assert start("predict", "killed", last_batch) == -signal.SIGKILL
    assert start("predict", "killed") == 0
    unbroken, killed = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("unbroken", "killed")
    )
    assert len(unbroken) == 13
    assert killed == unbroken
