import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.orbit import utils


def test_epoch_helper_begins_and_ends_epochs_at_multiples_of_epoch_steps():
    step = tf.Variable(0)
    epochs = utils.EpochHelper(3, step)
    begins, ends = [], []
    for _ in range(6):
        if epochs.epoch_begin():
            begins.append((epochs.current_epoch, int(step.numpy())))
        assert epochs.batch_index == int(step.numpy()) % 3
        step.assign_add(1)
        if epochs.epoch_end():
            ends.append(int(step.numpy()))
    assert begins == [(0, 0), (1, 3)]
    assert ends == [3, 6]


def test_epoch_end_outside_an_epoch_raises_an_error():
    epochs = utils.EpochHelper(3, tf.Variable(0))
    assert epochs.current_epoch is None
    with pytest.raises(errors.ConfigValueError, match="outside an epoch"):
        epochs.epoch_end()
