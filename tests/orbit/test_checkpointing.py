import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.orbit import checkpointing


@pytest.fixture
def make_checkpointing(make_trainer, make_manager):
    def make(interval=None, trainer=None):
        manager = make_manager(trainer or make_trainer(), interval=interval)
        return checkpointing.Checkpointing(manager, tf.distribute.get_strategy())

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
