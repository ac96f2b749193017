"""A small problem that one replica can solve, or two replicas with half of the batch each."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from tests import rounding

# One row per replica. The rows differ so much that clipping each gradient is not equivalent to
# clipping their sum.
FEATURES = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)
# The number of roundings in four updates, each with a norm over six gradient elements.
ROUNDINGS = 4 * 6
# Adam's `1 - beta_2` is small but has the rounding error of 1. The second moments have this
# relative error, and each update has an error of this fraction of the learning rate.
ADAM_ERROR = rounding.unit_roundoff("float32") / (1 - 0.999)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """The state after training."""

    strategy: tf.distribute.Strategy
    optimizer: Any
    kernel: keras.Variable
    bias: keras.Variable

    @property
    def weights(self) -> np.ndarray:
        """Return the kernel and bias, which must be the same on all replicas."""
        return np.concatenate([copy_on_each(v)[0].ravel() for v in (self.kernel, self.bias)])


def copy_on_each(variable: keras.Variable) -> list[np.ndarray]:
    """Return the values on each replica, which must be equal."""
    raw = variable.value
    copies = [copy.numpy() for copy in getattr(raw, "values", (raw,))]
    for copy in copies[1:]:
        np.testing.assert_array_equal(copy, copies[0])
    return copies


def _gradients(row: tf.Tensor) -> list[tf.Tensor]:
    return [tf.tensordot(row, row, 0), 3.0 * row]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list to which the warnings of the test are added."""
    messages: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: messages.append(text % args))
    return messages


@pytest.fixture
def train_on(two_replicas: tf.distribute.Strategy) -> Callable[..., Trained]:
    """Return a function that trains on `num_replicas`; step `poison_at` has a gradient overflow."""

    def train(
        num_replicas: int,
        optimizer_fn: Callable[[], Any],
        steps: int = 4,
        poison_at: int = -1,
    ) -> Trained:
        strategy = two_replicas if num_replicas == 2 else tf.distribute.get_strategy()
        with strategy.scope():
            kernel = keras.Variable([[1.0, 2.0], [3.0, 4.0]], name="kernel")
            bias = keras.Variable([0.5, -0.5], name="bias")
            optimizer = optimizer_fn()
            optimizer.build([kernel, bias])

        def replica_step(step: tf.Tensor) -> None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            if num_replicas == 2:
                gradients = _gradients(tf.constant(FEATURES)[replica])
            else:
                gradients = [a + b for a, b in zip(*map(_gradients, FEATURES), strict=True)]
            # Only the last replica's gradient overflows.
            is_poisoned = tf.logical_and(step == poison_at, replica == num_replicas - 1)
            gradients[0] *= tf.where(is_poisoned, np.inf, 1.0)
            scaled = [optimizer.scale_loss(gradient) for gradient in gradients]
            optimizer.apply_gradients(zip(scaled, [kernel, bias], strict=True))

        @tf.function
        def loop() -> None:
            for step in tf.range(steps):
                strategy.run(replica_step, args=(step,))

        loop()
        return Trained(strategy=strategy, optimizer=optimizer, kernel=kernel, bias=bias)

    return train
