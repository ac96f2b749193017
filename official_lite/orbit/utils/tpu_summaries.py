"""Summaries inside a compiled function, without a cost for calls that write none."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Self

import tensorflow as tf


class OptionalSummariesFunction:
    """A function compiled twice: with `tf.summary` calls and without them.

    On a TPU, a summary op slows down even the steps in which it writes nothing. A subclass decides
    in `__call__` which of the two versions to run::

        class TrainLoop(OptionalSummariesFunction):
            def __call__(self, num_steps):
                if tf.summary.should_record_summaries():
                    self.with_summaries(tf.constant(1))
                    num_steps -= 1
                if num_steps >= 1:
                    self.without_summaries(num_steps)

    The class can wrap a function or, as a decorator, a method.

    Args:
        function: The function to compile.
        **tf_function_kwargs: Options of `tf.function`.

    Attributes:
        with_summaries: The version that records summaries as `tf.summary.record_if` specifies. Soft
            device placement lets the summary ops run on the host.
        without_summaries: The version that records no summaries.
    """

    with_summaries: Any
    without_summaries: Any

    def __init__(self, function: Callable[..., Any], **tf_function_kwargs: Any) -> None:
        @functools.wraps(function)
        def with_summaries(*args: Any, **kwargs: Any) -> Any:
            with _soft_device_placement():
                return function(*args, **kwargs)

        @functools.wraps(function)
        def without_summaries(*args: Any, **kwargs: Any) -> Any:
            with tf.summary.record_if(False):
                return function(*args, **kwargs)

        self.with_summaries = tf.function(with_summaries, **tf_function_kwargs)
        self.without_summaries = tf.function(without_summaries, **tf_function_kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Bind both functions to an instance, like a method."""
        bound = object.__new__(type(self))
        bound.with_summaries = self.with_summaries.__get__(instance, owner)
        bound.without_summaries = self.without_summaries.__get__(instance, owner)
        return bound


@contextlib.contextmanager
def _soft_device_placement() -> Iterator[None]:
    before = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(True)
    try:
        yield
    finally:
        tf.config.set_soft_device_placement(before)
