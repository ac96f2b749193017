"""Utility functions used by models ported from the Model Garden."""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from official_lite.common import nests
from official_lite.modeling import activations

__all__ = [
    "assert_rank",
    "clone_initializer",
    "cross_replica_concat",
    "deserialize_keras_object",
    "get_activation",
    "get_replica_id",
    "get_shape_list",
    "is_special_none_tensor",
    "pack_inputs",
    "safe_mean",
    "serialize_activation",
    "serialize_constraint",
    "serialize_initializer",
    "serialize_keras_object",
    "serialize_layer",
    "serialize_regularizer",
    "unpack_inputs",
]

InitializerT = TypeVar("InitializerT", bound="keras.initializers.Initializer | str | None")

_CUSTOM_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    name: getattr(activations, name) for name in activations.__all__
}


def get_activation(
    identifier: str | Callable[[tf.Tensor], tf.Tensor] | None,
    use_keras_layer: bool = False,
    **kwargs: Any,
) -> Any:
    """Return the activation function, or a layer that applies it.

    Args:
        identifier: A name in any case, or anything else that `keras.activations.get` accepts.
        use_keras_layer: Whether to return a layer. Supported for the names in `activations` and for
            `relu`, `linear`, `swish`, `sigmoid` and `leaky_relu`.
        **kwargs: Arguments for `leaky_relu` and `gelu` as a layer, such as `alpha=0.1`.
    """
    if not isinstance(identifier, str):
        return keras.activations.get(identifier)
    name = identifier.lower()
    if use_keras_layer and (fn := _layer_function(name, kwargs)) is not None:
        return keras.layers.Activation(fn)
    return _CUSTOM_ACTIVATIONS.get(name) or keras.activations.get(name)


def get_shape_list(
    tensor: tf.Tensor, expected_rank: int | Sequence[int] | None = None, name: str | None = None
) -> list[Any]:
    """Return the shape, with an int for each known dimension and a scalar tensor for the others.

    Raises:
        ValueError: The rank is not one of `expected_rank`.
    """
    if expected_rank is not None:
        assert_rank(tensor, expected_rank, name)
    static = tensor.shape.as_list()
    if None not in static:
        return static
    dynamic = tf.shape(tensor)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]


def assert_rank(
    tensor: tf.Tensor, expected_rank: int | Sequence[int], name: str | None = None
) -> None:
    """Check that the rank of `tensor` is (one of) `expected_rank`.

    Raises:
        ValueError: The rank is not (one of) `expected_rank`.
    """
    allowed = [expected_rank] if isinstance(expected_rank, int) else list(expected_rank)
    rank = tensor.shape.rank
    if rank not in allowed:
        raise ValueError(
            f"For the tensor `{name}`, the actual tensor rank `{rank}` (shape = {tensor.shape}) "
            f"is not equal to the expected tensor rank `{expected_rank}`."
        )


def safe_mean(losses: tf.Tensor) -> tf.Tensor:
    """Return the mean as a scalar, or 0 if `losses` is empty."""
    count = tf.cast(tf.size(losses), losses.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(losses), count)


def get_replica_id() -> Any:
    """Return the index of this replica, starting at 0, as an int or a scalar tensor.

    Raises:
        RuntimeError: The function was called in a strategy's scope but outside `strategy.run`.
    """
    context = tf.distribute.get_replica_context()
    if context is None:
        raise RuntimeError(
            "get_replica_id() was called outside a replica context. Call it in `strategy.run`."
        )
    return context.replica_id_in_sync_group


def cross_replica_concat(
    value: tf.Tensor, axis: int, name: str = "cross_replica_concat"
) -> tf.Tensor:
    """Return the values of all replicas concatenated along `axis`, identical on every replica.

    Args:
        value: This replica's part, with the same shape and dtype on all replicas.
        axis: The axis to concatenate along.
        name: A name scope.

    Raises:
        RuntimeError: The size of the first dimension is unknown, as in the last batch with
            `drop_remainder=False`, or the function was called outside `strategy.run`.
    """
    context = tf.distribute.get_replica_context()
    if context is None:
        raise RuntimeError(
            "cross_replica_concat() was called outside a replica context. Call it in "
            "`strategy.run`."
        )
    if value.shape.rank and value.shape[0] is None:
        raise RuntimeError(
            "cross_replica_concat() requires a static batch size, but the batch size of "
            f"{value} is unknown. Batch the dataset with `drop_remainder=True`."
        )
    with tf.name_scope(name):
        return context.all_gather(value, axis=axis)


def clone_initializer(initializer: InitializerT) -> InitializerT:
    """Return a new initializer of the same kind, so that two layers start with different weights.

    An initializer with a fixed seed produces the same numbers again. Anything other than an
    initializer, such as a name, is returned unchanged.
    """
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.__class__.from_config(initializer.get_config())
    return initializer


def pack_inputs(inputs: nests.Nest) -> tuple[tf.Tensor, ...]:
    """Return the flattened inputs, with a scalar in place of each None (deprecated)."""
    _warn_about_packing()
    return tuple(
        tf.constant(0, dtype=tf.int32) if x is None else x for x in tf.nest.flatten(inputs)
    )


def unpack_inputs(inputs: nests.Nest) -> Any:
    """Revert `pack_inputs`; a single input is returned without a tuple (deprecated)."""
    _warn_about_packing()
    flat = tuple(None if is_special_none_tensor(x) else x for x in tf.nest.flatten(inputs))
    return flat[0] if len(flat) == 1 else flat


def is_special_none_tensor(tensor: tf.Tensor) -> bool:
    """Return whether the tensor is the scalar that `pack_inputs` substitutes for None."""
    return bool(tensor.shape.rank == 0 and tensor.dtype == tf.int32)


def serialize_keras_object(obj: object) -> Any:
    """Call `keras.saving.serialize_keras_object`."""
    return keras.saving.serialize_keras_object(obj)


def deserialize_keras_object(
    config: Mapping[str, Any] | str | None,
    module_objects: Mapping[str, Any] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    printable_module_name: str | None = None,
) -> Any:
    """Call `keras.saving.deserialize_keras_object`; `printable_module_name` is ignored."""
    known = {**(module_objects or {}), **(custom_objects or {})}
    return keras.saving.deserialize_keras_object(config, custom_objects=known)


# Keras 3 has a single format: `use_legacy_format` is accepted for ported code and ignored.
def serialize_layer(layer: keras.layers.Layer, use_legacy_format: bool = False) -> Any:
    """Call `keras.layers.serialize`."""
    return keras.layers.serialize(layer)


def serialize_initializer(
    initializer: keras.initializers.Initializer, use_legacy_format: bool = False
) -> Any:
    """Call `keras.initializers.serialize`."""
    return keras.initializers.serialize(initializer)


def serialize_regularizer(
    regularizer: keras.regularizers.Regularizer, use_legacy_format: bool = False
) -> Any:
    """Call `keras.regularizers.serialize`."""
    return keras.regularizers.serialize(regularizer)


def serialize_constraint(
    constraint: keras.constraints.Constraint, use_legacy_format: bool = False
) -> Any:
    """Call `keras.constraints.serialize`."""
    return keras.constraints.serialize(constraint)


def serialize_activation(
    activation: Callable[[tf.Tensor], tf.Tensor], use_legacy_format: bool = False
) -> Any:
    """Call `keras.activations.serialize`."""
    return keras.activations.serialize(activation)


def _layer_function(name: str, kwargs: dict[str, Any]) -> Callable[..., Any] | str | None:
    if name == "leaky_relu":
        return functools.partial(tf.nn.leaky_relu, **kwargs)
    if name == "gelu":
        return functools.partial(tf.nn.gelu, **kwargs)
    if name in ("relu", "linear", "swish", "sigmoid"):
        return name
    if name == "identity":
        return "linear"
    return _CUSTOM_ACTIVATIONS.get(name)


def _warn_about_packing() -> None:
    warnings.warn(
        "`pack_inputs` and `unpack_inputs` are deprecated. Keras layers accept several tensors, so "
        "inputs don't need packing.",
        DeprecationWarning,
        stacklevel=3,
    )
