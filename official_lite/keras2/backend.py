"""Functions of `keras.backend` that Keras 3 provides only in `tf.keras`."""

import functools
from typing import Any

import keras

# Avoid `tf.keras`, which is Keras 2 if the environment variable `TF_USE_LEGACY_KERAS` is set.
from keras._tf_keras.keras import backend

from official_lite.keras2 import interop


# The function needs a distinct name, because Keras saves an activation by its name: a saved layer
# would otherwise be loaded with Keras 3's own `hard_sigmoid`.
@keras.saving.register_keras_serializable("official_lite")
def keras2_hard_sigmoid(x: Any) -> Any:
    """Return `0.2 * x + 0.5`, limited to the range from 0 to 1; Keras 3 has `x / 6 + 0.5`."""
    return interop.call(backend.hard_sigmoid, x)


hard_sigmoid = keras2_hard_sigmoid


def __getattr__(name: str) -> Any:
    return functools.partial(interop.call, getattr(backend, name))
