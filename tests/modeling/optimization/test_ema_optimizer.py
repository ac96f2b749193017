"""Moving averages of weights: their formula, their exactness, and their use with wrappers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import fallback
from official_lite.common import errors
from official_lite.modeling import performance
from official_lite.modeling.distributed_gradients import make_distributed
from official_lite.modeling.optimization.ema_optimizer import (
    ExponentialMovingAverage,
    averaged_weights,
    following_weights,
    get_moving_average,
)
from tests import rounding
from tests.modeling.conftest import ROUNDINGS


def _model(dtype: str = "float32") -> keras.Model:
    layers = [keras.layers.Dense(3, dtype=dtype), keras.layers.BatchNormalization(dtype=dtype)]
    model = keras.Sequential([keras.Input([2]), *layers])
    for weight in model.weights:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    return model


def _averages(train: Any) -> np.ndarray:
    average = get_moving_average(train.optimizer)
    average.swap_weights()
    averages = train.weights
    average.swap_weights()
    return averages


@pytest.mark.parametrize(("dynamic_decay", "start_step"), [(True, 0), (False, 2)])
def test_moving_average_follows_its_formula(dynamic_decay: bool, start_step: int) -> None:
    weight = keras.Variable([4.0, -1.0])
    average = ExponentialMovingAverage(
        keras.optimizers.SGD(0.1),
        average_decay=0.3,
        start_step=start_step,
        dynamic_decay=dynamic_decay,
    )
    w, a = np.array([4.0, -1.0]), np.array([4.0, -1.0])
    for step in range(1, 8):
        average.apply_gradients([(2.0 * tf.convert_to_tensor(weight) + 1.0, weight)])
        w = w - 0.1 * (2.0 * w + 1.0)
        t = step - start_step
        decay = 0.0 if t < 0 else min(0.3, (1 + t) / (10 + t)) if dynamic_decay else 0.3
        a = decay * a + (1 - decay) * w
    # Each of the seven updates has about four roundings.
    rounding.assert_close(weight.numpy(), w, roundings=7 * 4)
    average.assign_average_vars([weight])
    rounding.assert_close(weight.numpy(), a, roundings=7 * 4)
    assert average.iterations.numpy() == 7


def test_uniform_averaging_gives_the_mean_of_the_model_weights_since_the_start_step() -> None:
    weight = keras.Variable([4.0, -1.0])
    sgd = keras.optimizers.SGD(0.1)
    average = ExponentialMovingAverage(sgd, start_step=3, equal_weights=True)
    weights = []
    for _ in range(7):
        average.apply_gradients([(2.0 * tf.convert_to_tensor(weight) + 1.0, weight)])
        weights.append(weight.numpy())
    average.assign_average_vars([weight])
    rounding.assert_close(weight.numpy(), np.mean(weights[2:], 0), roundings=4)


def test_moving_average_is_equal_on_one_and_two_replicas(train_on: Callable[..., Any]) -> None:
    def optimizer() -> Any:
        return ExponentialMovingAverage(keras.optimizers.SGD(0.1, global_clipnorm=1.0))

    one, two = (train_on(n, optimizer) for n in (1, 2))
    rounding.assert_close(two.weights, one.weights, roundings=ROUNDINGS)
    rounding.assert_close(_averages(two), _averages(one), roundings=ROUNDINGS)
    assert np.all(_averages(one) != one.weights)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_swapping_averaged_weights_twice_restores_the_trained_weights_bit_for_bit(
    two_replicas: tf.distribute.Strategy, dtype: str
) -> None:
    values = np.array([1.0, -1e-8, 3e4, np.inf, 0.1], np.float32)
    with two_replicas.scope():
        weight = keras.Variable(values, dtype=dtype)
        average = ExponentialMovingAverage(keras.optimizers.SGD(0.1))
        average.build([weight])
        weight.assign(values / 3)
    stored = np.asarray(tf.cast(values, dtype))
    trained = weight.value.values[1].numpy().copy()
    average.swap_weights()
    for copy in weight.value.values:
        assert copy.numpy().tobytes() == stored.tobytes()
    average.swap_weights()
    for copy in weight.value.values:
        assert copy.numpy().tobytes() == trained.tobytes()


def test_swapping_averaged_weights_twice_restores_weights_that_differ_between_replicas(
    two_replicas: tf.distribute.Strategy,
) -> None:
    with two_replicas.scope():
        weight = keras.Variable([1.0])
        average = ExponentialMovingAverage(keras.optimizers.SGD(0.1))
        average.build([weight])
    for copy, value in zip(weight.value.values, (2.0, 3.0), strict=True):
        copy.assign([value])
    average.swap_weights()
    assert [copy.numpy()[0] for copy in weight.value.values] == [1.0, 1.0]
    average.swap_weights()
    assert [copy.numpy()[0] for copy in weight.value.values] == [2.0, 3.0]


def test_moving_average_covers_non_trainable_weights_if_trainable_weights_only_is_false() -> None:
    model = _model()
    model.add(keras.layers.Dropout(0.5))  # its seed must not be averaged
    for trainable_only in (True, False):
        average = ExponentialMovingAverage(
            keras.optimizers.SGD(0.1), trainable_only, average_decay=0.5, dynamic_decay=False
        )
        for weight in model.weights:
            weight.assign(tf.zeros(weight.shape))
        average.shadow_copy(model)
        average.shadow_copy(model)  # the second call adds no averages
        assert len(average.averages) == (4 if trainable_only else 6)
        for weight in model.weights:
            weight.assign(tf.ones(weight.shape))
        average.update_average()
        average.swap_weights()
        for weight in model.weights:
            expected = 0.5 if weight.trainable or not trainable_only else 1.0
            np.testing.assert_array_equal(weight.numpy(), np.full(weight.shape, expected))


def test_overflow_skips_the_weight_update_and_the_moving_average_update(
    train_on: Callable[..., Any],
) -> None:
    def optimizer() -> Any:
        inner = ExponentialMovingAverage(keras.optimizers.SGD(0.1, global_clipnorm=1.0))
        return performance.configure_optimizer(inner, use_float16=True)

    unpoisoned = train_on(1, optimizer, steps=3)
    for num_replicas in (1, 2):
        poisoned = train_on(num_replicas, optimizer, steps=4, poison_at=1)
        rounding.assert_close(poisoned.weights, unpoisoned.weights, roundings=ROUNDINGS)
        rounding.assert_close(_averages(poisoned), _averages(unpoisoned), roundings=ROUNDINGS)
        assert poisoned.optimizer.iterations.numpy() == 3
        assert poisoned.optimizer.dynamic_scale.numpy() == 2.0**14


@pytest.mark.parametrize("built_before_restore", [True, False])
def test_moving_average_is_restored_from_a_checkpoint(
    tmp_path: Path, built_before_restore: bool
) -> None:
    def build() -> tuple[keras.Variable, Any]:
        return keras.Variable([4.0], name="w"), performance.LossScaleOptimizer(
            ExponentialMovingAverage(keras.optimizers.SGD(0.5, momentum=0.9))
        )

    weight, optimizer = build()
    for _ in range(3):
        optimizer.apply_gradients([(tf.constant([2.0**15]), weight)])
    path = tf.train.Checkpoint(weight=weight, optimizer=optimizer).save(str(tmp_path / "ckpt"))

    fresh_weight, fresh = build()
    if built_before_restore:
        fresh.build([fresh_weight])
    status = tf.train.Checkpoint(weight=fresh_weight, optimizer=fresh).restore(path)
    if not built_before_restore:
        fresh.build([fresh_weight])
    status.assert_consumed()
    for one, other in ((weight, optimizer), (fresh_weight, fresh)):
        other.apply_gradients([(tf.constant([2.0**15]), one)])
        get_moving_average(other).swap_weights()
    np.testing.assert_array_equal(fresh_weight.numpy(), weight.numpy())
    assert fresh.iterations.numpy() == 4


def test_serialized_moving_average_is_restored_with_all_its_arguments() -> None:
    average = ExponentialMovingAverage(keras.optimizers.Adam(0.5), False, 0.9, 7, False, "mean")
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(average))
    assert type(restored) is ExponentialMovingAverage
    assert restored.get_config() == average.get_config()


def test_keras_fit_trains_with_a_moving_average() -> None:
    model = _model()
    model.compile(ExponentialMovingAverage(keras.optimizers.SGD(0.1)), "mse")
    model.fit(np.ones([8, 2]), np.ones([8, 3]), batch_size=4, verbose=0)
    assert model.optimizer.iterations.numpy() == 2


def test_trained_weights_are_restored_when_a_context_with_averaged_weights_ends() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = ExponentialMovingAverage(keras.optimizers.SGD(1.0))
    optimizer.shadow_copy(model)
    before = model.layers[0].kernel.numpy()
    model.layers[0].kernel.assign(before + 1.0)
    with following_weights(optimizer):
        optimizer.swap_weights()
        np.testing.assert_array_equal(model.layers[0].kernel, before + 1.0)
        optimizer.swap_weights()
    with averaged_weights(optimizer), averaged_weights(keras.optimizers.SGD()):
        np.testing.assert_array_equal(model.layers[0].kernel, before)
    np.testing.assert_array_equal(model.layers[0].kernel, before + 1.0)


def test_moving_average_is_found_in_wrappers_and_forwards_its_learning_rate() -> None:
    average = ExponentialMovingAverage(keras.optimizers.SGD(0.5))
    for wrapper in (average, performance.LossScaleOptimizer(average), make_distributed(average)):
        assert get_moving_average(wrapper) is average
    assert get_moving_average(keras.optimizers.SGD(0.1)) is None
    assert get_moving_average(None) is None
    average.learning_rate = 0.25
    assert float(average.inner_optimizer.learning_rate) == float(average.learning_rate) == 0.25


def _average(**kwargs: Any) -> ExponentialMovingAverage:
    return ExponentialMovingAverage(keras.optimizers.SGD(0.1), **kwargs)


def _build_without_model() -> None:
    _average(trainable_weights_only=False).build([keras.Variable([1.0])])


def _assign_unknown() -> None:
    average = _average()
    average.build([keras.Variable([1.0])])
    average.assign_average_vars([keras.Variable([1.0])])


def _swap_in_a_replica() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        average = _average()
        average.build([keras.Variable([1.0])])
    strategy.run(average.swap_weights)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (_build_without_model, errors.ConfigValueError, "shadow_copy"),
        (lambda: _average(clipnorm=1.0), errors.ConfigValueError, "clipnorm"),
        (lambda: _average(momentum=1.0), TypeError, "momentum"),
        (lambda: _average().swap_weights(), ValueError, "shadow_copy"),
        (_swap_in_a_replica, ValueError, r"strategy\.run"),
        (_assign_unknown, ValueError, "no average"),
    ],
)
def test_invalid_use_of_a_moving_average_is_refused(
    call: Callable[[], Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        call()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("equal_weights", [False, True])
def test_average_of_half_precision_weights_moves_in_float32_and_survives_evaluations(
    dtype: str, equal_weights: bool
) -> None:
    averages = []
    for one in ("float32", dtype):
        weight = keras.Variable([1.0], dtype=one)
        optimizer = ExponentialMovingAverage(
            keras.optimizers.SGD(1.0), average_decay=0.9995, equal_weights=equal_weights
        )
        optimizer.build([weight])
        optimizer.inner_optimizer.iterations.assign(20_000)
        weight.assign([2.0])
        for _ in range(3):
            optimizer.apply_gradients([(tf.constant([0.0], one), weight)])
            with averaged_weights(optimizer), following_weights(optimizer):
                rounded = weight.numpy()
        averages.append(optimizer.averages[0].numpy())
        assert weight.numpy() == [2.0]
        assert rounded == averages[-1].astype(rounded.dtype)
    assert averages[0] > 1.0
    np.testing.assert_array_equal(*averages)


def test_restoring_a_moving_average_that_was_saved_in_half_precision_raises(
    tmp_path: Path,
) -> None:
    def build() -> tf.train.Checkpoint:
        weight = keras.Variable([1.0], dtype="bfloat16", name="w")
        optimizer = ExponentialMovingAverage(keras.optimizers.SGD(0.1))
        optimizer.build([weight])
        return tf.train.Checkpoint(weight=weight, optimizer=optimizer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.backend, "result_type", lambda dtype, _: dtype)
        path = build().save(str(tmp_path / "ckpt"))
    with pytest.raises(errors.CheckpointError, match="float does not equal original dtype bfloat"):
        fallback.restore_newest(build(), [path])
