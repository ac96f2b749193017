"""Where AutoGraph has to look: at the code of users, and not at the framework's own.

To convert a function takes it some 30 ms, and thirty functions are a training step.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

__all__ = ["converted", "next_batch", "not_converted"]

_Fn = TypeVar("_Fn", bound=Callable[..., Any])

# Written for graphs.
_PACKAGES = ("official_lite", "tensorflow", "keras")

# That of code outside of any function, where AutoGraph is neither on nor off.
_OUTSIDE = tf.__internal__.autograph.control_status_ctx()


def not_converted(function: _Fn) -> _Fn:
    """Marks a function without `if` and `for` on tensors, in itself and in all that it calls.

    What it calls that a user may have written goes through `converted`.
    """
    marked: _Fn = tf.autograph.experimental.do_not_convert(function)
    return marked


def converted(function: _Fn) -> _Fn:
    """A function that a user may have written, to be called from one that is not converted."""
    if tf.executing_eagerly() or _is_for_graphs(function):
        return function
    user_function: _Fn = tf.__internal__.autograph.tf_convert(function, _OUTSIDE)
    return user_function


def next_batch(iterator: Any) -> Any:
    """`next(iterator)`, where AutoGraph may be off.

    There TensorFlow takes the 33rd trace on one iterator for a loop that is unrolled by mistake.
    """
    with _OUTSIDE:
        return next(iterator)


def _is_for_graphs(function: Any) -> bool:
    target = inspect.unwrap(getattr(function, "__func__", function))
    return (getattr(target, "__module__", None) or "").partition(".")[0] in _PACKAGES
