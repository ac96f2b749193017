"""Training data and the compiled loop over them, as one thing that runs steps.

The data can be exchanged, so that a loop can be tried on others before the training that counts.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from official_lite.data import autotuning
from official_lite.orbit.utils import loop_fns

__all__ = ["IteratorLoop", "TrainLoop", "exchange", "make_iterator"]


class TrainLoop(Protocol):
    """Runs steps on data that it holds."""

    def __call__(self, num_steps: tf.Tensor) -> Any:
        """Runs so many steps (int32) and returns the outputs of the last one.

        Raises:
          StopIteration, tf.errors.OutOfRangeError: The data ended before.
        """

    def trace(self) -> Sequence[Any]:
        """Traces the steps, if that has not been done yet. Runs nothing.

        Returns:
          The concrete functions that run them; none if nothing is compiled.
        """

    def retrace(self) -> None:
        """Forgets the trace, as the step has become another one. The data go on."""

    def read(self, dataset: tf.data.Dataset) -> None:
        """Goes on with the beginning of other data of the same structure, not distributed ones."""


class IteratorLoop:
    """Calls a loop function `(iterator, num_steps)` with an iterator over the data.

    Args:
      create_loop_fn: Makes one of `loop_fns`, compiled or not.
      dataset: A dataset, a distributed one, or a nest of them.
    """

    def __init__(self, create_loop_fn: Callable[[], loop_fns.LoopFn], dataset: Any) -> None:
        self._create_loop_fn = create_loop_fn
        self._loop_fn: Any = create_loop_fn()
        self._iterators = tf.nest.map_structure(make_iterator, dataset)
        self._bound: Any = None

    def __call__(self, num_steps: tf.Tensor) -> Any:
        concrete = self.trace()
        if not concrete:
            return self._loop_fn(self._iterators, num_steps)
        return concrete[0](num_steps)

    def trace(self) -> Sequence[Any]:
        is_function = hasattr(self._loop_fn, "python_function")
        if not is_function or tf.config.functions_run_eagerly():
            return []
        if self._bound is None:
            # A `tf.function` that is given an iterator looks at its type in every call, which takes
            # as long as a short step: here it is captured, and the trace is found once.
            run = functools.partial(self._loop_fn.python_function, self._iterators)
            signature = [tf.TensorSpec([], tf.int32)]
            self._bound = tf.function(lambda n: run(n), signature).get_concrete_function()
        return [self._bound]

    def retrace(self) -> None:
        self._loop_fn = self._create_loop_fn()
        self._bound = None

    def read(self, dataset: tf.data.Dataset) -> None:
        exchange(self._iterators, dataset)


def make_iterator(dataset: Any) -> Any:
    """An iterator over a dataset, or over a distributed one."""
    return iter(autotuning.without_idle_autotuner(dataset))


def exchange(iterator: Any, dataset: tf.data.Dataset) -> None:
    """Lets an iterator, which a graph may have captured, begin with another dataset."""
    dataset = autotuning.without_idle_autotuner(dataset)
    variant = tf.data.experimental.to_variant(dataset)
    tf.raw_ops.MakeIterator(dataset=variant, iterator=iterator._iterator_resource)
