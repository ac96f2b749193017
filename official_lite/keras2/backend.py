"""Functions of `keras.backend` that Keras 3 provides only in `tf.keras`."""

import functools
from typing import Any

# Avoid `tf.keras`, which is Keras 2 if the environment variable `TF_USE_LEGACY_KERAS` is set.
from keras._tf_keras.keras import backend

from official_lite.keras2 import interop


def __getattr__(name: str) -> Any:
    return functools.partial(interop.call, getattr(backend, name))
