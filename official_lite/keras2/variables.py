"""Keras variables with the attributes of TensorFlow variables."""

from typing import Any

import keras

__all__ = ["have_attributes_of_tensorflow"]


# With these, `tf.gather` would read the variable past a stateless scope and autocasting.
_READS = ("gather_nd", "sparse_read")


def have_attributes_of_tensorflow() -> None:
    """Give each `keras.Variable` the methods and attributes of its `tf.Variable`, such as `ref`.

    What Keras itself defines, such as `name`, stays as it is.
    """
    keras_variable: Any = keras.Variable
    keras_variable.__getattr__ = _attribute


def _attribute(variable: keras.Variable, name: str) -> Any:
    value = vars(variable).get("_value")
    # Special methods and the state of checkpoints belong to one object.
    if value is None or name.startswith(("__", "_self_", *_READS)):
        raise AttributeError(f"{type(variable).__name__!r} object has no attribute {name!r}")
    return getattr(value, name)
