"""Loop functions, which turn a function that runs one step into a function that runs many.

A step function takes an iterator (or a nested structure of iterators) and runs one step on the data
that it fetches. All loop functions take `(iterator, num_steps)`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from official_lite.common import errors, goodput, nests, preemption, user_code
from official_lite.orbit.utils import step_guard, tpu_summaries

StepFn = Callable[[Any], Any]
LoopFn = Callable[..., Any]

# What an iterator raises when it has nothing left: the first from Python, the second from a graph.
END_OF_DATA = (StopIteration, tf.errors.OutOfRangeError)


def create_loop_fn(step_fn: StepFn) -> LoopFn:
    """Create a Python loop that ends early, without an error, when the data end; for evaluation.

    Args:
      step_fn: The step function. `reduce_fn` receives its outputs.

    Returns:
      A function `(iterator, num_steps, state=None, reduce_fn=None)`. It runs `num_steps` steps, or
      until the data end if `num_steps` is -1. It folds each output into the state with `state =
      reduce_fn(state, outputs)`, and returns the final state. A signal that requests a stop ends it
      with an `errors.PreemptedError`.
    """

    def loop_fn(
        iterator: Iterator[nests.Nest],
        num_steps: tf.Tensor,
        state: nests.Nest = None,
        reduce_fn: Callable[[Any, Any], Any] | None = None,
    ) -> Any:
        steps_wanted = int(num_steps)
        step = 0
        while steps_wanted == -1 or step < steps_wanted:
            preemption.check()
            try:
                outputs = step_fn(iterator)
            except END_OF_DATA:
                break
            if reduce_fn is not None:
                state = reduce_fn(state, outputs)
            step += 1
        return state

    return loop_fn


def create_exact_loop_fn(step_fn: StepFn) -> LoopFn:
    """Create a Python loop that runs exactly `num_steps` steps; for training.

    If the data end early, the loop raises the iterator's own error. Ending quietly would count
    steps that never ran.

    Returns:
      A function `(iterator, num_steps)` that returns the outputs of the last step.
    """

    def loop_fn(iterator: Iterator[nests.Nest], num_steps: tf.Tensor) -> Any:
        outputs = None
        for _ in range(int(num_steps)):
            outputs = step_fn(iterator)
        return outputs

    return loop_fn


def create_tf_while_loop_fn(step_fn: StepFn) -> LoopFn:
    """Create a loop that becomes a `tf.while_loop` inside a `tf.function`.

    Returns:
      A function `(iterator, num_steps)` that returns the outputs of the last step. `num_steps` is
      an integer tensor, so one trace serves loops of every length.
    """
    step_fn = step_guard.guard_step(step_fn)
    last = LastOutputs()

    def loop_fn(iterator: Iterator[nests.Nest], num_steps: tf.Tensor) -> Any:
        _check_tensor(num_steps)
        for _ in tf.range(num_steps):
            # Without this the names of all ops in the step would begin with "while/".
            with tf.name_scope(""):
                last.keep(step_fn(iterator))
        return last.read()

    return loop_fn


def create_tf_while_loop_fn_with_state(step_fn: StepFn) -> LoopFn:
    """Create a loop like that of `create_tf_while_loop_fn`, with a state passed between steps.

    Returns:
      A function `(iterator, num_steps, state, reduce_fn)` that returns the final state. The
      structure of the state must not change. The shapes of its tensors may change, so outputs can
      be concatenated.
    """
    step_fn = step_guard.guard_step(step_fn)

    def loop_fn(
        iterator: Iterator[nests.Nest],
        num_steps: tf.Tensor,
        state: nests.Nest,
        reduce_fn: Callable[[Any, Any], Any],
    ) -> Any:
        _check_tensor(num_steps)
        for _ in tf.range(num_steps):
            with tf.name_scope(""):
                tf.autograph.experimental.set_loop_options(
                    shape_invariants=[(state, tf.nest.map_structure(_any_size, state))]
                )
                outputs = step_fn(iterator)
                state = reduce_fn(state, outputs)
        return state

    return loop_fn


class LastOutputs:
    """Carries the outputs of a step out of a `tf.while_loop`, in variables.

    Loop variables would not work, because they need shapes before the step has been traced. A step
    that returns nothing has no extra cost.
    """

    def __init__(self) -> None:
        self._outputs: Any = None
        self._kept: list[tf.Variable] = []

    @tf.autograph.experimental.do_not_convert
    def keep(self, outputs: nests.Nest) -> None:
        self._outputs = None
        tensors = tf.nest.flatten(outputs, expand_composites=True)
        if not tensors or not all(tf.is_tensor(tensor) for tensor in tensors):
            return
        self._outputs = outputs
        # A `tf.function` may create variables in its first trace only; later ones find them here.
        if [holder.dtype for holder in self._kept] != [tensor.dtype for tensor in tensors]:
            with tf.init_scope():
                self._kept = [_create_holder(tensor) for tensor in tensors]
        for holder, tensor in zip(self._kept, tensors, strict=True):
            holder.assign(tensor)

    @tf.autograph.experimental.do_not_convert
    def read(self) -> Any:
        if self._outputs is None:
            return None
        values = [holder.read_value() for holder in self._kept]
        return tf.nest.pack_sequence_as(self._outputs, values, expand_composites=True)


def _create_holder(tensor: tf.Tensor) -> tf.Variable:
    if tensor.shape.is_fully_defined():
        # XLA holds nothing that may change its size.
        return tf.Variable(tf.zeros(tensor.shape, tensor.dtype), trainable=False)
    rank = tensor.shape.rank
    any_size = tf.TensorShape(None if rank is None else [None] * rank)
    return tf.Variable(tf.zeros([0] * (rank or 0), tensor.dtype), trainable=False, shape=any_size)


class CountedStep:
    """A step function that counts its completed calls. Do not use it inside a graph."""

    def __init__(self, step_fn: StepFn) -> None:
        self._step_fn = step_fn
        self._has_run = False
        self.calls = 0

    def __call__(self, iterator: Iterator[nests.Nest]) -> Any:
        if self._has_run:
            outputs = self._step_fn(iterator)
        else:
            with goodput.measuring("compiling"):
                outputs = self._step_fn(iterator)
            self._has_run = True
        self.calls += 1
        return outputs


class LoopFnWithSummaries(tpu_summaries.OptionalSummariesFunction):
    """A loop function with two programs: one step with summaries, and the rest without.

    It wraps the result of `create_tf_while_loop_fn`. The first step of the loop runs with summaries
    if summaries are recorded there.
    """

    def __call__(self, iterator: Iterator[nests.Nest], num_steps: tf.Tensor) -> None:
        if tf.summary.should_record_summaries():
            self.with_summaries(iterator, tf.constant(1))
            num_steps -= 1
        if num_steps >= 1:
            self.without_summaries(iterator, num_steps)


@user_code.not_converted
def _check_tensor(num_steps: object) -> None:
    if not tf.is_tensor(num_steps):
        raise errors.ConfigValueError(
            f"`num_steps` is the Python value {num_steps!r}, so `tf.function` would retrace for "
            "each value. Pass `tf.constant(num_steps)`."
        )


def _any_size(value: nests.Nest) -> tf.TensorShape | None:
    if not tf.is_tensor(value):
        return None
    rank = value.shape.rank
    return tf.TensorShape([None] * rank) if rank else value.shape
