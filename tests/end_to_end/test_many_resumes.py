"""A job that is resumed again and again leaves nothing behind that adds up."""

import os
import threading

import pytest
import tensorflow as tf

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.core import exp_factory, task_factory, train_lib


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
def test_53_threads_files_and_checkpoints_do_not_add_up(tmp_path):
    counts = []
    for number in range(1, 17):
        _resume(tmp_path, train_steps=3 * number)
        counts.append((threading.active_count(), _open_files()))
    threads, open_files = zip(*counts[4:], strict=True)
    # One run more or less may still be on its way out.
    assert max(threads) - min(threads) <= 2, threads
    assert max(open_files) - min(open_files) <= 4, open_files
    assert len(list(tmp_path.glob("ckpt-*.index"))) == 5
    assert len(list(tmp_path.glob("train/events*"))) == 16
    assert not list(tmp_path.glob("*_temp*"))
    lines = (tmp_path / "metrics.json").read_text().splitlines()
    assert len(lines) == 32
