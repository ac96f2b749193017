"""Optimizer step with an explicit all-reduce of the gradients over replicas.

Callbacks can act on either side of the all-reduce: on each replica's own gradients before it, and
on the summed gradients after it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.modeling import distributed_gradients

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
        optimizer: The optimizer, which is made distributed; see `make_distributed`. With several
            replicas it must already be built.
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
        errors.ConfigValueError: No variable has a gradient.
    """
    variables = list(trainable_variables)
    optimizer = distributed_gradients.make_distributed(optimizer)
    if not optimizer.built:
        optimizer.build(variables)
    scale = _loss_scale(optimizer)
    with tape:
        scaled_loss = loss if scale is None else loss * tf.cast(scale, loss.dtype)
    computed: Any = zip(tape.gradient(scaled_loss, variables), variables, strict=True)
    computed = list(_run_callbacks(pre_allreduce_callbacks, computed))
    missing = [(gradient, variable) for gradient, variable in computed if gradient is None]
    present = [(gradient, variable) for gradient, variable in computed if gradient is not None]
    gradients = _all_reduce(
        [gradient for gradient, _ in present],
        allreduce_bytes_per_pack,
        dtype=None if scale is None else tf.float16,
    )
    pairs = list(zip(gradients, (variable for _, variable in present), strict=True))
    if post_allreduce_callbacks:
        pairs = _on_unscaled(post_allreduce_callbacks, pairs, scale)
    optimizer.apply_gradients([*pairs, *missing], skip_gradients_aggregation=True)


def _loss_scale(optimizer: keras.optimizers.Optimizer) -> tf.Tensor | None:
    """Return the factor by which the optimizer divides gradients, or None without loss scaling."""
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


def _all_reduce(gradients: list[Any], bytes_per_pack: int, dtype: tf.DType | None) -> list[Any]:
    """Sum gradients over replicas, in `dtype` if it is set, and restore their original dtypes."""
    if not gradients:
        return []
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
    pairs = _run_callbacks(callbacks, unscaled)
    # Multiply the gradients by the loss scale again, because the optimizer divides by it. This
    # loses no precision if the scale is a power of two.
    return [(_times(gradient, scale), variable) for gradient, variable in pairs]


def _times(
    gradient: tf.Tensor | tf.IndexedSlices, factor: tf.Tensor
) -> tf.Tensor | tf.IndexedSlices:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
