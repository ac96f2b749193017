"""Optimizer step with an explicit all-reduce of the gradients over replicas.

Callbacks can act on either side of the all-reduce: on each replica's own gradients before it, and
on the summed gradients after it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

__all__ = ["minimize_using_explicit_allreduce"]

GradientsAndVariables = Iterable[tuple[Any, Any]]
Callback = Callable[[GradientsAndVariables], GradientsAndVariables]


def minimize_using_explicit_allreduce(
    tape: tf.GradientTape,
    optimizer: keras.optimizers.Optimizer,
    loss: tf.Tensor,
    trainable_variables: Sequence[Any],
    pre_allreduce_callbacks: Sequence[Callback] | None = None,
    post_allreduce_callbacks: Sequence[Callback] | None = None,
    allreduce_bytes_per_pack: int = 0,
) -> None:
    """Update `trainable_variables` by one step down the gradient of `loss`.

    With loss scaling, the gradients are reduced in float16 while they are scaled. The optimizer's
    own clipping applies to the sum, whatever the number of replicas.

    Args:
        tape: The tape that recorded `loss`.
        optimizer: The optimizer. With several replicas it must already be built.
        loss: This replica's loss. To average the gradients, divide it by the number of replicas
            first.
        trainable_variables: The variables to update.
        pre_allreduce_callbacks: Functions applied in order to the (gradient, variable) pairs before
            the reduction, while the gradients are scaled.
        post_allreduce_callbacks: Functions applied in order to the pairs after the reduction, when
            the gradients are no longer scaled.
        allreduce_bytes_per_pack: The size of a pack in the reduction; 0 puts everything in one
            pack.

    Raises:
        ValueError: No variable has a gradient.
    """
    variables = list(trainable_variables)
    if not optimizer.built:
        optimizer.build(variables)
    scale = _loss_scale(optimizer)
    with tape:
        scaled_loss = loss if scale is None else loss * tf.cast(scale, loss.dtype)
    computed = zip(tape.gradient(scaled_loss, variables), variables, strict=True)
    pairs = _with_gradient(_run_callbacks(pre_allreduce_callbacks, computed))
    gradients = _all_reduce(
        [gradient for gradient, _ in pairs],
        allreduce_bytes_per_pack,
        dtype=None if scale is None else tf.float16,
    )
    pairs = list(zip(gradients, (variable for _, variable in pairs), strict=True))
    if post_allreduce_callbacks:
        pairs = _on_unscaled(post_allreduce_callbacks, pairs, scale)
    _apply_reduced(optimizer, pairs)


def _loss_scale(optimizer: keras.optimizers.Optimizer) -> tf.Tensor | None:
    """Return the factor that the optimizer will divide gradients by, or None if it will not."""
    is_dynamic = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not is_dynamic and optimizer.loss_scale_factor is None:
        return None
    return tf.convert_to_tensor(optimizer.scale_loss(tf.constant(1.0)))


def _run_callbacks(
    callbacks: Sequence[Callback] | None, pairs: GradientsAndVariables
) -> GradientsAndVariables:
    for callback in callbacks or ():
        pairs = callback(pairs)
    return pairs


def _with_gradient(pairs: GradientsAndVariables) -> list[tuple[Any, Any]]:
    pairs = list(pairs)
    present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    missing = [variable.name for gradient, variable in pairs if gradient is None]
    if not present:
        raise ValueError(
            f"No gradients provided for any variable: {missing}. Make sure that the loss depends "
            "on them and is computed under the gradient tape."
        )
    if missing:
        logging.warning("The loss does not depend on the variables %s.", missing)
    return present


def _all_reduce(gradients: list[Any], bytes_per_pack: int, dtype: tf.DType | None) -> list[Any]:
    """Return the sums over all replicas in the original types, reduced in `dtype` if given."""
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)
    context = tf.distribute.get_replica_context()
    types = [gradient.dtype for gradient in gradients]
    if dtype is not None:
        gradients = [tf.cast(gradient, dtype) for gradient in gradients]
    reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients, options)
    return [tf.cast(gradient, type_) for gradient, type_ in zip(reduced, types, strict=True)]


def _on_unscaled(
    callbacks: Sequence[Callback], pairs: GradientsAndVariables, scale: tf.Tensor | None
) -> list[tuple[Any, Any]]:
    if scale is None:
        return list(_run_callbacks(callbacks, pairs))
    unscaled = [(_times(gradient, 1.0 / scale), variable) for gradient, variable in pairs]
    # The optimizer divides by the scale itself. Scales are powers of two, so no precision is lost.
    pairs = _run_callbacks(callbacks, unscaled)
    return [(_times(gradient, scale), variable) for gradient, variable in pairs]


def _apply_reduced(optimizer: keras.optimizers.Optimizer, pairs: Sequence[tuple[Any, Any]]) -> None:
    """Apply gradients that are equal on all replicas exactly once.

    A Keras optimizer clips the gradients of each replica and then sums them. The first replica
    therefore passes the sum and the others pass zeros, so that the sum is clipped and applied. The
    zeros are the gradient times zero, which keeps an infinity visible to every replica as NaN.
    """
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        context = tf.distribute.get_replica_context()
        is_first = tf.cast(tf.equal(context.replica_id_in_sync_group, 0), tf.float32)
        pairs = [(_times(gradient, is_first), variable) for gradient, variable in pairs]
    optimizer.apply_gradients(pairs)


def _times(
    gradient: tf.Tensor | tf.IndexedSlices, factor: tf.Tensor
) -> tf.Tensor | tf.IndexedSlices:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
