"""Precision policies, and loss scaling on one and two replicas."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.modeling import performance
from official_lite.modeling.distributed_gradients import make_distributed
from tests import rounding
from tests.line_experiment import LineTask
from tests.modeling.conftest import ROUNDINGS


@pytest.mark.parametrize(
    ("dtype", "policy"),
    [
        ("float16", "mixed_float16"),
        ("mixed_bfloat16", "mixed_bfloat16"),
        (tf.bfloat16, "mixed_bfloat16"),
        ("float32", "float32"),
        (None, "float32"),
    ],
)
def test_mixed_precision_accepts_dtype_and_policy_names(dtype: Any, policy: str) -> None:
    performance.set_mixed_precision_policy(dtype)
    assert keras.config.dtype_policy().name == policy


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: performance.set_mixed_precision_policy("flaot16"), "`float16`"),
        (
            lambda: performance.set_mixed_precision_policy("float16", loss_scale=8),
            "configure_optimizer",
        ),
        *(
            (lambda s=s: performance.configure_optimizer(keras.optimizers.SGD(), True, s), "scale")
            for s in ("static", 0, -1.0)
        ),
    ],
)
def test_invalid_precision_or_loss_scale_is_refused(call: Callable[[], Any], named: str) -> None:
    with pytest.raises(errors.ConfigValueError, match=named):
        call()


def test_mixed_precision_policy_context_restores_the_dtype_policy_after_an_error() -> None:
    with contextlib.suppress(ZeroDivisionError), performance.mixed_precision_policy("bfloat16"):
        assert keras.layers.Dense(1).compute_dtype == "bfloat16"
        raise ZeroDivisionError
    assert keras.config.dtype_policy().name == "float32"


def test_configure_optimizer_adds_loss_scaling_only_for_float16() -> None:
    optimizer = keras.optimizers.SGD(0.1)
    assert performance.configure_optimizer(optimizer) is optimizer
    wrapped = performance.configure_optimizer(optimizer, use_float16=True)
    assert isinstance(wrapped, keras.mixed_precision.LossScaleOptimizer)
    assert wrapped.inner_optimizer is optimizer


def _scaled(loss_scale: Any = None) -> Callable[[], Any]:
    def optimizer() -> Any:
        inner = keras.optimizers.AdamW(0.1, weight_decay=0.1, global_clipnorm=1.0)
        return performance.configure_optimizer(inner, True, loss_scale)

    return optimizer


@pytest.mark.parametrize(("num_replicas", "loss_scale"), [(1, None), (2, "dynamic"), (2, 128.0)])
def test_loss_scaling_does_not_change_the_update(
    train_on: Callable[..., Any], num_replicas: int, loss_scale: Any
) -> None:
    def optimizer() -> Any:
        return make_distributed(keras.optimizers.AdamW(0.1, weight_decay=0.1, global_clipnorm=1.0))

    plain = train_on(1, optimizer)
    scaled = train_on(num_replicas, _scaled(loss_scale))
    rounding.assert_close(scaled.weights, plain.weights, roundings=ROUNDINGS)


@pytest.mark.parametrize(
    ("num_replicas", "wrap"),
    [(1, performance.LossScaleOptimizer), (2, keras.optimizers.LossScaleOptimizer)],
)
def test_overflow_on_one_replica_skips_the_step_on_all_replicas(
    train_on: Callable[..., Any], num_replicas: int, wrap: Any
) -> None:
    def optimizer() -> Any:
        return make_distributed(wrap(keras.optimizers.AdamW(0.1, global_clipnorm=1.0)))

    unpoisoned = train_on(1, optimizer, steps=3)
    poisoned = train_on(num_replicas, optimizer, steps=4, poison_at=2)
    rounding.assert_close(poisoned.weights, unpoisoned.weights, roundings=ROUNDINGS)
    assert poisoned.optimizer.iterations.numpy() == 3
    assert poisoned.optimizer.dynamic_scale.numpy() == 2.0**14


def test_loss_scale_grows_after_finite_steps_even_if_a_variable_has_no_gradient(
    two_replicas: tf.distribute.Strategy,
) -> None:
    with two_replicas.scope():
        used, unused = keras.Variable([1.0]), keras.Variable([1.0])
        optimizer = performance.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=2.0, dynamic_growth_steps=2
        )
        optimizer.build([used, unused])

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(tf.constant([2.0]), used), (None, unused)])

    for scale in (2.0, 4.0):
        assert optimizer.dynamic_scale.numpy() == scale
        for _ in range(2):
            two_replicas.run(step)
    # Two updates with a scale of 2, and two with a scale of 4.
    assert (used.numpy(), unused.numpy()) == ([1.0 - 2 * 2.0 - 2 * 1.0], [1.0])
    assert optimizer.iterations.numpy() == 4


def test_fixed_loss_scale_neither_grows_nor_skips_steps() -> None:
    weight = keras.Variable([1.0])
    optimizer = performance.LossScaleOptimizer(
        keras.optimizers.SGD(1.0), initial_scale=8.0, dynamic_growth_steps=1, dynamic=False
    )
    optimizer.apply_gradients([(tf.constant([4.0]), weight)])
    assert (weight.numpy(), float(optimizer.scale_loss(1.0))) == ([0.5], 8.0)
    optimizer.apply_gradients([(tf.constant([np.inf]), weight)])
    assert weight.numpy() == [-np.inf]
    assert optimizer.iterations.numpy() == 2


@pytest.mark.parametrize(("gradient", "bound"), [(np.nan, 1.0), (0.0, 2.0**126)])
def test_loss_scale_never_becomes_zero_or_infinite(gradient: float, bound: float) -> None:
    weight = keras.Variable([1.0])
    optimizer = performance.LossScaleOptimizer(keras.optimizers.SGD(1.0), bound, 1)
    for _ in range(3):
        optimizer.apply_gradients([(tf.constant([gradient]), weight)])
    assert optimizer.dynamic_scale.numpy() == bound


def test_keras_2_train_step_with_explicit_unscaling_unscales_gradients_only_once() -> None:
    weight = keras.Variable([3.0])
    optimizer = performance.configure_optimizer(keras.optimizers.SGD(0.5), use_float16=True)
    for _ in range(2):
        with tf.GradientTape() as tape:
            scaled_loss = optimizer.get_scaled_loss(tf.reduce_sum(2.0 * weight))
        gradients = tape.gradient(scaled_loss, [weight])
        gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(list(zip(gradients, [weight], strict=True)))
    np.testing.assert_allclose(weight.numpy(), [1.0])


def test_loss_scale_optimizer_ignores_the_loss_scale_factor_of_its_inner_optimizer() -> None:
    inner = keras.optimizers.SGD(1.0, loss_scale_factor=8.0)
    optimizer = performance.LossScaleOptimizer(inner, dynamic=False, initial_scale=2.0)
    weight = keras.Variable([1.0])
    optimizer.apply_gradients([(tf.constant([1.0]), weight)])
    assert weight.numpy() == [0.5]


def test_serialized_loss_scale_optimizer_is_restored_with_all_its_arguments() -> None:
    optimizer = performance.LossScaleOptimizer(keras.optimizers.SGD(0.5), 4.0, 7, False, "scaled")
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(restored) is performance.LossScaleOptimizer
    assert restored.get_config() == optimizer.get_config()


class UnscaledTask(LineTask):
    """A task whose training step does not scale its loss."""

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> Any:
        features, labels = inputs
        with tf.GradientTape() as tape:
            loss = self.build_losses(labels, model(features, training=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {self.loss: loss}


@pytest.mark.parametrize(("task_cls", "num_warnings"), [(LineTask, 0), (UnscaledTask, 1)])
def test_float16_training_step_that_does_not_scale_its_loss_logs_one_warning(
    task_cls: type[LineTask],
    num_warnings: int,
    experiment: Callable[..., Any],
    make_trainer: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The precision of the run applies only to the optimizer; the model computes in float32.
    params = experiment(runtime={"mixed_precision_dtype": "float16"})
    trainer = make_trainer(params, task_cls=task_cls, evaluate=False)
    for _ in range(2):
        trainer.train(tf.constant(1))
    warnings = [line for line in caplog.messages if "never calls `scale_loss`" in line]
    assert len(warnings) == num_warnings
