"""Functions that treat Keras variables and TensorFlow variables alike."""

from collections.abc import Sequence

import keras
import tensorflow as tf

__all__ = ["local_values", "path_of", "raw"]


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
