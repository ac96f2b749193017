"""Predictions of a step: the columns of a model's outputs, and checks of what a task returns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, nested_dict, qualnames, types
from official_lite.prediction import output

__all__ = ["are_of_classes", "checked", "as_arrays", "count_rows", "from_outputs"]

# Metrics whose predictions are one score per class, along the last axis.
_OF_CLASSES = (
    keras.metrics.CategoricalAccuracy,
    keras.metrics.SparseCategoricalAccuracy,
    keras.metrics.SparseTopKCategoricalAccuracy,
    keras.metrics.TopKCategoricalAccuracy,
)

# Operations that keep all values of a tensor.
_KEEP_VALUES = ("Identity", "Cast", "Reshape")


def from_outputs(outputs: types.Nest, *, scores_classes: bool) -> dict[str, tf.Tensor]:
    """Return the columns for the outputs of a model; see `Task.build_predictions`.

    Args:
        outputs: The outputs of the model.
        scores_classes: Whether a single output has one score per class.
    """
    named = _named(outputs, "")
    names = nested_dict.unique_keys([name for name, _ in named])
    columns = {name: tensor for name, (_, tensor) in zip(names, named, strict=True)}
    is_table = isinstance(outputs, tf.Tensor) and outputs.shape.rank == 2
    if scores_classes and is_table and outputs.dtype.is_floating and outputs.shape[-1] != 1:
        columns["class"] = tf.argmax(outputs, axis=-1)
        if _is_softmax(outputs):
            columns["probability"] = tf.reduce_max(outputs, axis=-1)
    return columns


def are_of_classes(metrics: Sequence[keras.metrics.Metric]) -> bool:
    """Return whether metrics take one score per class as predictions."""
    return any(isinstance(metric, _OF_CLASSES) for metric in metrics)


def _named(outputs: types.Nest, name: str) -> list[tuple[str, tf.Tensor]]:
    """Return the tensors of a nest with the names of their columns."""
    if isinstance(outputs, Mapping):
        parts = [(f"{name}{'.' if name else ''}{key}", part) for key, part in outputs.items()]
    elif isinstance(outputs, list | tuple):
        parts = [(f"{name or 'output'}_{index}", part) for index, part in enumerate(outputs)]
    else:
        return [(name or "output", outputs)]
    return [column for key, part in parts for column in _named(part, key)]


def _is_softmax(tensor: tf.Tensor) -> bool:
    """Return whether a tensor of a graph is the result of a softmax; False in eager mode."""
    while isinstance(tensor, tf.Tensor) and not tf.executing_eagerly():
        if tensor.op.type not in _KEEP_VALUES:
            return bool(tensor.op.type == "Softmax")
        tensor = tensor.op.inputs[0]
    return False


def count_rows(inputs: types.Nest) -> tf.Tensor:
    """Return the number of examples in a batch; -1 if it has no dense tensor with rows."""
    for part in tf.nest.flatten(inputs):
        if isinstance(part, tf.Tensor) and part.shape.rank != 0:
            return tf.shape(part)[0]
    return tf.constant(-1)


def as_arrays(
    predictions: Mapping[str, Sequence[tf.Tensor]],
    num_rows: Sequence[tf.Tensor],
    method: Callable[..., Any],
) -> dict[str, npt.NDArray[Any]]:
    """Return the predictions of all replicas, in their order, as one array per column.

    Args:
        predictions: The tensors of each column, one per replica.
        num_rows: The number of examples of each replica; negative if unknown.
        method: The method of the task that returned them, for the message.

    Raises:
        errors.ConfigValueError: If a column does not have one row per example.
    """
    wanted = [int(count) for count in num_rows]
    columns = {}
    for name, tensors in predictions.items():
        arrays = [tensor.numpy() for tensor in tensors]
        counts = [len(array) for array in arrays]
        wanted = counts if min(wanted) < 0 else wanted
        if counts != wanted:
            raise errors.ConfigValueError(
                f"{qualnames.described(method)} returned {sum(counts)} rows as {name!r} for a "
                f"batch of {sum(wanted)} examples; expected one row per example."
            )
        # The shapes of empty parts need not fit those of the others.
        arrays = [array for array in arrays if len(array)] or arrays[:1]
        columns[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return columns


def checked(method: Callable[..., Any], predictions: Any) -> dict[str, tf.Tensor]:
    """Return the predictions of a step as dense tensors by name.

    Args:
        method: The method that returned them, which the message names with its file and line.
        predictions: The returned value.

    Raises:
        errors.ConfigTypeError: If it is no mapping of names to dense tensors.
        errors.ConfigValueError: If it is empty, or a name is reserved.
    """
    said = qualnames.described(method)
    expected = "expected a dictionary of tensors with one row per example"
    if not isinstance(predictions, Mapping):
        raise errors.ConfigTypeError(
            f"{said} returned predictions of type {type(predictions).__name__}; {expected}."
        )
    if not predictions:
        raise errors.ConfigValueError(f"{said} returned no predictions; {expected}.")
    if output.INDEX in predictions:
        raise errors.ConfigValueError(
            f"{said} returned predictions named {output.INDEX!r}, which is the column with the "
            "number of the row. Use another name."
        )
    for name, value in predictions.items():
        if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
            raise errors.ConfigTypeError(
                f"{said} returned a {type(value).__name__} as {name!r}; {expected}. Apply "
                "`to_tensor()`, or `tf.sparse.to_dense`, to it."
            )
    tensors = {str(name): tf.convert_to_tensor(value) for name, value in predictions.items()}
    for name, tensor in tensors.items():
        if tensor.shape.rank == 0:
            raise errors.ConfigValueError(f"{said} returned a scalar as {name!r}; {expected}.")
    return tensors
