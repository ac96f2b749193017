"""Gradients of the loss of an architecture, of first or second order.

Second-order gradients account for the weights' dependence on the architecture. All functions run in
a replica; the gradient is the sum of their results over the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from official_lite.common import nests
from official_lite.modeling import distributed_gradients

__all__ = ["LossFn", "finite_difference", "first_order", "gradients_or_zeros", "second_order"]

LossFn = Callable[..., tf.Tensor]
"""`loss_fn(batch)`, or `loss_fn(batch, weights, values)` to substitute `values` for `weights`."""

# The paper on DARTS divides this number by the norm of the weights' gradient to get the step size.
_FINITE_STEP = 0.01


def first_order(loss_fn: LossFn, *, val: nests.Nest, alphas: Sequence[Any]) -> list[tf.Tensor]:
    """Return the gradient of the loss of `val` with respect to `alphas` at the current weights."""
    with tf.GradientTape() as tape:
        loss = loss_fn(val)
    return gradients_or_zeros(tape, loss, alphas)


def second_order(
    loss_fn: LossFn,
    *,
    train: nests.Nest,
    val: nests.Nest,
    weights: Sequence[Any],
    alphas: Sequence[Any],
    learning_rate: float | tf.Tensor,
) -> list[tf.Tensor]:
    """Return the exact gradient of L_val(w − ξ ∂L_train(w, α)/∂w, α) with respect to α.

    The updated weights are tensors. No variable is written, so none has to be restored.

    Args:
        loss_fn: The loss function.
        train: The batch of L_train.
        val: The batch of L_val.
        weights: The weights w.
        alphas: The architecture parameters α.
        learning_rate: The learning rate ξ.
    """
    with tf.GradientTape() as outer:
        unrolled = _step(loss_fn, train, weights, learning_rate)
        loss = loss_fn(val, weights, unrolled)
    return gradients_or_zeros(outer, loss, alphas)


def finite_difference(
    loss_fn: LossFn,
    *,
    train: nests.Nest,
    val: nests.Nest,
    weights: Sequence[Any],
    alphas: Sequence[Any],
    learning_rate: float | tf.Tensor,
) -> list[tf.Tensor]:
    """Estimate the gradient of `second_order` by the paper's finite differences.

    This takes the same arguments as `second_order` and needs only first derivatives.
    """
    unrolled = _step(loss_fn, train, weights, learning_rate)
    with tf.GradientTape() as tape:
        tape.watch(unrolled)
        loss = loss_fn(val, weights, unrolled)
    both = gradients_or_zeros(tape, loss, [*alphas, *unrolled])
    direct, direction = both[: len(alphas)], both[len(alphas) :]
    direction = distributed_gradients.sum_over_replicas(direction)
    step = _FINITE_STEP / tf.maximum(tf.linalg.global_norm(direction), 1e-12)

    def at(sign: float) -> list[tf.Tensor]:
        moved = [
            tf.convert_to_tensor(w) + tf.cast(sign * step, d.dtype) * d
            for w, d in zip(weights, direction, strict=True)
        ]
        with tf.GradientTape() as tape:
            loss = loss_fn(train, weights, moved)
        return gradients_or_zeros(tape, loss, alphas)

    return [
        d - learning_rate * (plus - minus) / (2.0 * step)
        for d, plus, minus in zip(direct, at(1.0), at(-1.0), strict=True)
    ]


def gradients_or_zeros(
    tape: tf.GradientTape, loss: tf.Tensor, sources: Sequence[Any]
) -> list[tf.Tensor]:
    """Return the gradients, with zeros for sources on which the loss does not depend."""
    gradients = tape.gradient(loss, list(sources))
    return [
        tf.zeros(source.shape, source.dtype) if gradient is None else tf.convert_to_tensor(gradient)
        for gradient, source in zip(gradients, sources, strict=True)
    ]


def _step(
    loss_fn: LossFn, train: nests.Nest, weights: Sequence[Any], learning_rate: float | tf.Tensor
) -> list[tf.Tensor]:
    """Return w − ξ ∂L_train/∂w, with the gradient summed over all replicas."""
    with tf.GradientTape() as tape:
        loss = loss_fn(train)
    gradients = distributed_gradients.sum_over_replicas(gradients_or_zeros(tape, loss, weights))
    return [
        tf.convert_to_tensor(w) - tf.cast(learning_rate, g.dtype) * g
        for w, g in zip(weights, gradients, strict=True)
    ]
