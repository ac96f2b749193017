"""Functions that treat Keras variables and TensorFlow variables alike."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils

__all__ = [
    "is_variable",
    "local_values",
    "parts_of",
    "path_of",
    "raw",
    "variables_of",
    "written_handles",
]


def path_of(variable: keras.Variable | tf.Variable) -> str:
    """Return the path of a Keras variable, or the name of a TensorFlow variable."""
    return str(getattr(variable, "path", None) or variable.name)


def raw(variable: keras.Variable | tf.Variable) -> tf.Variable:
    """Return the TensorFlow variable of a Keras variable, or any other variable unchanged."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def local_values(variable: keras.Variable | tf.Variable) -> Sequence[tf.Variable]:
    """Return this worker's copies of a variable, one for each replica."""
    value = raw(variable)
    values: Sequence[tf.Variable] = getattr(value, "values", (value,))
    return values


def variables_of(part: object) -> Iterator[Any]:
    """Yield all variables below a layer, a trackable object, a list or a mapping."""
    for one in parts_of(part):
        if isinstance(one, keras.Layer):
            # This includes layers in lists, which the traversal below does not reach.
            yield from one.weights
        else:
            nodes = tf.train.TrackableView(one).descendants()
            yield from (node for node in nodes if is_variable(node))


def parts_of(value: object) -> Iterator[Any]:
    """Yield what the containers in a value hold, at any depth, or the value itself."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from parts_of(part)
    else:
        yield value


def is_variable(trackable: object) -> bool:
    return isinstance(trackable, keras.Variable | tf.Variable)


def written_handles(graph: tf.__internal__.FuncGraph) -> list[tf.Tensor]:
    """Return the handles of the variables that a function may write.

    Args:
        graph: The graph of the function, which may still be under construction.
    """
    written: set[str] = set()
    for operation in graph.get_operations():
        _, handles = auto_control_deps_utils.get_read_write_resource_inputs(operation)
        written.update(handle.name for handle in handles)
    return [outside for outside, inside in graph.captures if inside.name in written]
