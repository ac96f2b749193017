"""A program that restores by hand reads checkpoints of Keras 2 and its own."""

import keras
import pytest
import tensorflow as tf

from official_lite import keras2
from official_lite.common import errors


def _model() -> keras.Model:
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])


@pytest.fixture
def of_keras2(tmp_path) -> str:
    layer = tf.train.Checkpoint(kernel=tf.Variable([[3.0]], name="dense/kernel"))
    saved = tf.train.Checkpoint(backbone=tf.train.Checkpoint(**{"layer_with_weights-0": layer}))
    return saved.write(str(tmp_path / "weights"))


def test_part_of_a_model_is_read_from_keras_2(of_keras2: str) -> None:
    model = _model()
    status = keras2.Checkpoint(backbone=model).read(of_keras2)
    status.expect_partial().assert_existing_objects_matched()
    assert float(model.weights[0][0, 0]) == 3.0


def test_part_that_is_not_there_is_refused(of_keras2: str) -> None:
    with pytest.raises(errors.CheckpointError, match="It contains `backbone`"):
        keras2.Checkpoint(head=_model()).restore(of_keras2)


def test_own_checkpoint_is_restored_as_ever(tmp_path) -> None:
    model, other = _model(), _model()
    path = keras2.Checkpoint(model=model).save(str(tmp_path / "ckpt"))
    keras2.Checkpoint(model=other).restore(path).assert_consumed()
    assert float(other.weights[0][0, 0]) == float(model.weights[0][0, 0])
    keras2.Checkpoint(model=other).restore(None)
