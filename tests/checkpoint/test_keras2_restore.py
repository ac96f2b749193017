"""Tests that a run resumes its model and optimizer from a checkpoint in the Keras 2 layout."""

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import fallback
from official_lite.common import errors
from official_lite.modeling.optimization import ema_optimizer


class LegacyOptimizer(tf.Module):
    """A module whose slots TensorFlow saves like those of a legacy optimizer."""

    def __init__(self, steps: int, slots: dict[str, list[tuple[tf.Variable, tf.Variable]]]) -> None:
        super().__init__()
        self.iter = tf.Variable(steps, dtype=tf.int64)
        self.decay = tf.Variable(0.0)
        self.__dict__["slots"] = slots  # TensorFlow does not track slots set this way.

    def get_slot_names(self) -> list[str]:
        return sorted(self.slots)

    def get_slot(self, variable: tf.Variable, name: str) -> tf.Variable | None:
        found = [slot for owner, slot in self.slots[name] if owner is variable]
        return found[0] if found else None

    def _create_or_restore_slot_variable(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError  # TensorFlow saves slots only of objects with this method.


def _weights() -> dict[str, tf.Variable]:
    kernel = tf.Variable([[1.0, 2.0]], name="dense/kernel")
    return {"kernel": kernel, "bias": tf.Variable([3.0, 4.0], name="dense/bias")}


def _model(weights: dict[str, tf.Variable]) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(**{"layer_with_weights-0": tf.train.Checkpoint(**weights)})


def _legacy(directory: pathlib.Path, names: str, owners: str = "kernel bias") -> str:
    """Save slots with the values 10, 11, ...: for each slot name, one slot per owner."""
    weights = _weights()
    values = iter(range(10, 30))
    slots = {
        name: [(weights[w], tf.Variable(weights[w] * 0 + next(values))) for w in owners.split()]
        for name in names.split()
    }
    checkpoint = tf.train.Checkpoint(
        model=_model(weights),
        optimizer=LegacyOptimizer(7, slots),
        global_step=tf.Variable(5, dtype=tf.int64),
    )
    return checkpoint.write(str(directory / "ckpt-5"))


def _named(directory: pathlib.Path) -> str:
    """Save slots as non-legacy optimizers do, in a different order than the model's weights."""
    weights = _weights()
    names = ["Adam/m/dense/bias", "Adam/v/dense/bias", "Adam/m/dense/kernel", "Adam/v/dense/kernel"]
    shapes = [(2,), (2,), (1, 2), (1, 2)]
    values = [11.0, 13.0, 10.0, 12.0]
    slots = [
        tf.Variable(tf.fill(shape, value), name=name)
        for name, shape, value in zip(names, shapes, values, strict=True)
    ]
    optimizer = tf.train.Checkpoint(
        _iterations=tf.Variable(7, dtype=tf.int64),
        _learning_rate=tf.Variable(0.5),
        _variables=slots,
    )
    step = tf.Variable(5, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=_model(weights), optimizer=optimizer, global_step=step)
    return checkpoint.write(str(directory / "ckpt-5"))


def _restored(path: str, optimizer: keras.optimizers.Optimizer) -> tf.train.Checkpoint:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    optimizer.build(model.trainable_variables)
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, global_step=step)
    before = [v.numpy() for v in model.weights]
    try:
        fallback.restore(checkpoint, path)
    except errors.CheckpointError:
        for weight, value in zip(model.weights, before, strict=True):
            np.testing.assert_array_equal(weight.numpy(), value)
        raise
    kernel, bias = (weight.numpy() for weight in model.weights)
    np.testing.assert_array_equal(kernel, [[1, 2]])
    np.testing.assert_array_equal(bias, [3, 4])
    assert int(step) == 5
    return checkpoint


def _firsts(variables: list[Any]) -> list[float]:
    return [float(np.ravel(variable.numpy())[0]) for variable in variables]


def test_moments_and_iterations_of_a_legacy_adam_are_restored(tmp_path: pathlib.Path) -> None:
    adam = keras.optimizers.Adam(0.25)
    _restored(_legacy(tmp_path, "m v"), adam)
    assert _firsts(adam._momentums) == [10, 11]
    assert _firsts(adam._velocities) == [12, 13]
    assert int(adam.iterations) == 7
    assert float(adam.learning_rate) == 0.25


def test_adam_moments_are_matched_by_the_names_of_their_weights(tmp_path: pathlib.Path) -> None:
    adam = keras.optimizers.Adam()
    _restored(_named(tmp_path), adam)
    assert _firsts(adam._momentums) == [10, 11]
    assert _firsts(adam._velocities) == [12, 13]


def test_sgd_momentum_and_moving_averages_are_restored(tmp_path: pathlib.Path) -> None:
    average = ema_optimizer.ExponentialMovingAverage(keras.optimizers.SGD(momentum=0.9))
    _restored(_legacy(tmp_path, "momentum average"), average)
    assert _firsts(average.inner_optimizer.momentums) == [10, 11]
    assert _firsts(average.averages) == [12, 13]
    assert int(average.inner_optimizer.iterations) == 7


def test_rmsprop_velocities_and_momentums_are_restored(tmp_path: pathlib.Path) -> None:
    rmsprop = keras.optimizers.RMSprop(momentum=0.9)
    _restored(_legacy(tmp_path, "rms momentum"), rmsprop)
    assert _firsts(rmsprop._velocities) == [10, 11]
    assert _firsts(rmsprop._momentums) == [12, 13]


def test_weight_without_saved_optimizer_slots_keeps_its_initial_slots(
    tmp_path: pathlib.Path,
) -> None:
    adam = keras.optimizers.Adam()
    _restored(_legacy(tmp_path, "m v", owners="kernel"), adam)
    assert _firsts(adam._momentums) == [10, 0]


@pytest.mark.parametrize(
    ("slots", "optimizer", "named"),
    [
        ("", keras.optimizers.Adam, r"\(4\).*`adam\w*/\w+_kernel_momentum`"),
        ("m v", keras.optimizers.SGD, r"\(4\).*kernel.*optimizer/m"),
        ("m v vhat", keras.optimizers.Adam, r"\(2\).*optimizer/vhat"),
    ],
)
def test_checkpoint_of_a_different_optimizer_raises_and_changes_no_weight(
    slots: str, optimizer: type[keras.optimizers.Optimizer], named: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(errors.CheckpointError, match=named) as caught:
        _restored(_legacy(tmp_path, slots), optimizer())
    assert caught.value.exit_code == 5
