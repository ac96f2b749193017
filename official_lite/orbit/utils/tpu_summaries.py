"""Summaries inside a compiled function, at no cost to the calls that write none."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Self

import tensorflow as tf


class OptionalSummariesFunction:
    """One function compiled twice: with `tf.summary` calls and without.

    On a TPU a summary op slows down even those steps in which it writes nothing. A subclass
    decides in `__call__` which of the two to run::

        class TrainLoop(OptionalSummariesFunction):
            def __call__(self, num_steps):
                if tf.summary.should_record_summaries():
                    self.with_summaries(tf.constant(1))
                    num_steps -= 1
                if num_steps >= 1:
                    self.without_summaries(num_steps)

    It may wrap a function or, as a decorator, a method.

    Args:
      function: What to compile.
      **tf_function_kwargs: Options of `tf.function`.

    Attributes:
      with_summaries: Records as `tf.summary.record_if` says; soft device placement lets the
        summary ops run on the host.
      without_summaries: Records nothing.
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

    def __get__(self, instance: Any, owner: type | None = None) -> Self:
        """Binds both functions to an instance, as a method would be."""
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
