"""Regular expressions that select variables for special treatment by an optimizer."""

import re
from collections.abc import Iterable

import keras
import tensorflow as tf

__all__ = ["matches_any"]


def matches_any(variable: keras.Variable | tf.Variable, patterns: Iterable[str] | None) -> bool:
    """Return whether a pattern matches the variable's path (`encoder/layer_norm/gamma`) or name.

    Args:
        variable: A `keras.Variable` or a `tf.Variable`.
        patterns: Regular expressions for `re.search`; None matches nothing.
    """
    name = variable.name.partition(":")[0]
    path = getattr(variable, "path", name)
    return any(re.search(pattern, path) or re.search(pattern, name) for pattern in patterns or ())
