import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import async_checkpoint_manager, fallback, model_state
from official_lite.common import errors
from official_lite.orbit import checkpointing


class _State(tf.train.experimental.PythonState):
    def serialize(self) -> str:
        return "x"

    def deserialize(self, string_value: str) -> None:
        del string_value


def _write(directory: pathlib.Path, **items) -> str:
    return tf.train.Checkpoint(**items).write(str(directory / "ckpt-1"))


def test_everything_that_is_missing_or_misshapen_is_named_and_nothing_is_assigned(tmp_path) -> None:
    path = _write(tmp_path, a=tf.Variable([1.0]), b=tf.Variable([1.0, 1.0]))
    a = tf.Variable([0.0])
    wanted = tf.train.Checkpoint(a=a, b=tf.Variable([0.0]), c=tf.Variable(0.0), d=_State())
    with pytest.raises(
        errors.CheckpointError,
        match=r"2 of 4.*\(c: \[\]\).*`d`.*\(b: \[2\] in the checkpoint, \[1\] in this run\)",
    ):
        fallback.require_complete(wanted, path)
    assert a.numpy() == 0.0


def test_optional_variables_and_bookkeeping_may_be_missing(tmp_path) -> None:
    path = _write(tmp_path, a=tf.Variable(1.0))
    extra = tf.Variable(0.0)
    wanted = tf.train.Checkpoint(
        a=tf.Variable(0.0), b=extra, hooks=_State(), skipped_batches=tf.Variable(0)
    )
    fallback.require_complete(wanted, path, optional=[extra])


def test_variables_that_do_not_exist_yet_are_not_looked_for(tmp_path) -> None:
    path = _write(tmp_path, a=tf.Variable(1.0))
    model = keras.Sequential([keras.layers.Dense(2)])
    fallback.require_complete(tf.train.Checkpoint(a=tf.Variable(0.0), model=model), path)


def test_variable_that_is_there_under_one_of_its_names_is_restored(tmp_path) -> None:
    variable = tf.Variable(0.0)
    path = _write(tmp_path, first=tf.Variable(1.0))
    wanted = tf.train.Checkpoint(first=variable, second=variable)
    fallback.require_complete(wanted, path)
    wanted.read(path)
    assert variable.numpy() == 1.0


def test_weights_in_a_list_of_another_length_are_not_mixed_up(tmp_path) -> None:
    saved, fewer = ([tf.Variable(tf.zeros([2])) for _ in range(count)] for count in (3, 2))
    path = _write(tmp_path, hidden_weights=saved)
    with pytest.raises(
        errors.CheckpointError, match=r"hidden_weights` \(3 in the checkpoint, 2 in this run\)"
    ):
        fallback.require_complete(tf.train.Checkpoint(hidden_weights=fewer), path)


def test_all_of_a_keras_model_is_looked_for(tmp_path) -> None:
    def build() -> keras.Model:
        layers = [keras.layers.Normalization(), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((2,)), *layers])

    path = _write(tmp_path, model=build())
    model = build()
    wanted = tf.train.Checkpoint(model=model, **model_state.hidden_items(model))
    with pytest.raises(errors.CheckpointError, match=r"`adapted_layers`.*random_state/0"):
        fallback.require_complete(wanted, path)


@pytest.mark.parametrize("manager_cls", ["TensorFlow", "AsyncCheckpointManager"])
@pytest.mark.parametrize("which", ["newest", "named"])
def test_every_way_to_restore_looks_first(manager_cls: str, which: str, tmp_path) -> None:
    path = _write(tmp_path, a=tf.Variable(1.0))
    tf.train.CheckpointManager(tf.train.Checkpoint(a=tf.Variable(1.0)), tmp_path, 1).save(1)
    cls = getattr(async_checkpoint_manager, manager_cls, tf.train.CheckpointManager)
    a = tf.Variable(0.0)
    manager = cls(tf.train.Checkpoint(a=a, b=tf.Variable(0.0)), str(tmp_path), max_to_keep=1)
    checkpoints = checkpointing.Checkpointing(manager, tf.distribute.get_strategy())
    with pytest.raises(errors.CheckpointError, match=r"\(b: \[\]\)"):
        checkpoints.restore(path if which == "named" else None)
    np.testing.assert_equal(a.numpy(), 0.0)
