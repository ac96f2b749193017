"""The boundary between user code, which AutoGraph converts, and framework code.

Framework code is not converted, because converting a function takes about 30 ms and a training step
calls about thirty functions.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras
import tensorflow as tf

_Fn = TypeVar("_Fn", bound=Callable[..., Any])

# Packages whose code runs in graphs without conversion by AutoGraph.
_PACKAGES = ("official_lite", "tensorflow", "keras")

# AutoGraph's status outside any function, where conversion is neither enabled nor disabled.
_OUTSIDE = tf.__internal__.autograph.control_status_ctx()


def not_converted(function: _Fn) -> _Fn:
    """Exclude a function from conversion by AutoGraph.

    Neither the function nor the code that it calls may have a tensor-dependent `if` or `for`.
    Functions that a user may have written must be called through `converted`.
    """
    marked: _Fn = tf.autograph.experimental.do_not_convert(function)
    return marked


def converted(function: _Fn) -> _Fn:
    """Convert a function that a user may have written, so that unconverted code can call it."""
    if tf.executing_eagerly() or _is_for_graphs(function):
        return function
    user_function: _Fn = tf.__internal__.autograph.tf_convert(function, _OUTSIDE)
    return user_function


def with_dtype_policy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs in any thread under the dtype policy of the current thread.

    Keras keeps the policy per thread, and some strategies run each replica in a thread of its own.
    """
    policy = keras.config.dtype_policy()
    set_policy = not_converted(keras.config.set_dtype_policy)

    def run(*args: Any, **kwargs: Any) -> Any:
        set_policy(policy)
        return function(*args, **kwargs)

    return run


def next_batch(iterator: Any) -> Any:
    """Return `next(iterator)`, even in code for which AutoGraph is disabled.

    With AutoGraph disabled, TensorFlow would mistake the 33rd trace on one iterator for an
    accidentally unrolled loop.
    """
    with _OUTSIDE:
        return next(iterator)


@contextlib.contextmanager
def keeping_attributes(owner: object) -> Iterator[None]:
    """Restore the attributes of an object on exit.

    Use it where the framework calls a method once more than the user expects. For example, a task
    may store a metric in `build_metrics` and read it when an evaluation ends.
    """
    kept = dict(vars(owner))
    yield
    for name, value in kept.items():
        if vars(owner).get(name) is not value:
            setattr(owner, name, value)


def _is_for_graphs(function: Any) -> bool:
    target = inspect.unwrap(getattr(function, "__func__", function))
    return (getattr(target, "__module__", None) or "").partition(".")[0] in _PACKAGES
