import pathlib
import threading

import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.orbit import checkpointing


@pytest.fixture
def make_checkpointing(make_trainer, make_manager):
    def make(interval=None, trainer=None, **kwargs):
        manager = make_manager(trainer or make_trainer(), interval=interval)
        return checkpointing.Checkpointing(manager, tf.distribute.get_strategy(), **kwargs)

    return make


def test_each_interval_makes_a_checkpoint_due(make_checkpointing):
    checkpoints = make_checkpointing(interval=10)
    checkpoints.add_interval(4)
    assert [step for step in range(21) if checkpoints.is_due(step)] == [4, 8, 10, 12, 16, 20]
    assert checkpoints.next_step(8) == 10


def test_without_an_interval_none_is_due(make_checkpointing):
    checkpoints = make_checkpointing()
    assert not checkpoints.has_intervals
    assert checkpoints.next_step(0) == float("inf")


def test_what_is_saved_comes_back(make_checkpointing, make_trainer):
    trainer = make_trainer()
    trainer.weight.assign(3.0)
    path = make_checkpointing(trainer=trainer).save(step=5)
    assert path.endswith("ckpt-5")
    restored = make_trainer()
    assert make_checkpointing(trainer=restored).restore() == path
    assert restored.weight.numpy() == 3.0


def test_damaged_checkpoint_is_named(make_checkpointing, make_trainer):
    trainer = make_trainer()
    path = make_checkpointing(trainer=trainer).save(step=5)
    with open(path + ".index", "wb") as index:
        index.write(b"damaged")
    with pytest.raises(errors.CheckpointError, match="ckpt-5 can't be restored"):
        make_checkpointing(trainer=make_trainer()).restore()


@pytest.mark.parametrize("in_background", [False, True])
def test_each_checkpoint_is_reported_once_and_complete(in_background, make_checkpointing):
    checkpoints = make_checkpointing(in_background=in_background)
    assert checkpoints.take_complete() is None
    path = checkpoints.save(step=5)
    checkpoints.wait()
    assert tf.train.latest_checkpoint(checkpoints.directory) == path
    assert checkpoints.take_complete() == path
    assert checkpoints.take_complete() is None


@pytest.fixture
def may_write(monkeypatch):
    """Saves wait for it when they have read the state and written nothing."""
    may_write = threading.Event()
    write = tf.train.experimental.ShardByTaskPolicy.__call__
    monkeypatch.setattr(
        tf.train.experimental.ShardByTaskPolicy,
        "__call__",
        lambda self, tensors: may_write.wait() and write(self, tensors),
    )
    yield may_write
    may_write.set()


def test_checkpoint_that_is_being_written_is_not_reported(make_checkpointing, may_write):
    checkpoints = make_checkpointing(in_background=True)
    path = checkpoints.save(step=5)
    assert checkpoints.take_complete() is None
    may_write.set()
    checkpoints.wait()
    assert checkpoints.take_complete() == path


def test_checkpoint_that_failed_is_not_reported(make_checkpointing, may_write):
    checkpoints = make_checkpointing(in_background=True)
    checkpoints.save(step=5)
    directory = pathlib.Path(checkpoints.directory)
    directory.rmdir()
    directory.write_text("in the way")
    may_write.set()
    with pytest.raises(tf.errors.OpError):
        checkpoints.wait()
    assert checkpoints.take_complete() is None


def test_plain_manager_saves_while_training_waits(make_trainer, tmp_path):
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(step=make_trainer().global_step), str(tmp_path), max_to_keep=1
    )
    strategy = tf.distribute.get_strategy()
    checkpoints = checkpointing.Checkpointing(manager, strategy, in_background=True)
    path = checkpoints.save(step=5)
    assert tf.train.latest_checkpoint(str(tmp_path)) == path
