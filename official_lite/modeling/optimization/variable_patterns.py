"""Regular expressions that select variables for special treatment by an optimizer."""

import re
from collections.abc import Iterable

import keras
import tensorflow as tf

__all__ = ["matches_any"]


def matches_any(
    variable: keras.Variable | tf.Variable, patterns: Iterable[str] | str | None
) -> bool:
    """Return whether a pattern matches the variable's path (`encoder/layer_norm/gamma`) or name.

    Args:
        variable: A `keras.Variable` or a `tf.Variable`.
        patterns: Regular expressions for `re.search`, or only one; None matches nothing. One that
            contains a colon, such as `kernel:0$`, is searched for in the names of Keras 2, which
            end in `:0`.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns or ()
    name = variable.name.partition(":")[0]
    path = getattr(variable, "path", name)
    return any(
        re.search(pattern, text + (":0" if ":" in pattern else ""))
        for pattern in patterns
        for text in (path, name)
    )
