"""The evaluation loop of the modes that XLA compiles."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.common import user_code
from official_lite.orbit import preemption, stacked_loop
from official_lite.orbit.utils import loop_fns, step_guard

__all__ = ["XlaEvalLoop"]

# What XLA raises for an op that it can't compile. Nothing has run by then.
_NOT_COMPILABLE = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)


class XlaEvalLoop:
    """A loop function `(iterator, num_steps, state, reduce_fn)` that ends when the data do.

    What XLA compiles is for batches of one size, that of the first. Batches of other sizes, such
    as the last one, are evaluated in a graph; and so is everything if XLA can't compile the step.

    Args:
      step_fn: As `StandardEvaluator.eval_step`. The iterator that it is given has `__next__` and
        `get_next`.
      needs_outputs: Whether `reduce_fn` is to see the outputs of each step. If not, many steps run
        in one program.

    Attributes:
      calls: The steps that have been run; whoever calls the loop may set it to 0.
    """

    def __init__(self, step_fn: loop_fns.StepFn, *, needs_outputs: bool) -> None:
        self._step_fn = step_guard.guard_step(step_fn)
        self._needs_outputs = needs_outputs
        self._in_graph = tf.function(self._step, reduce_retracing=True)
        self._in_xla = tf.function(self._step, jit_compile=True)
        self._program: Any = None
        self._shapes: list[tf.TensorShape] = []
        self._count = 0
        self._can_compile = True
        self._drawn: Any = None
        self.calls = 0

    def __call__(
        self,
        iterator: Any,
        num_steps: Any,
        state: Any = None,
        reduce_fn: Callable[[Any, Any], Any] | None = None,
    ) -> Any:
        wanted = int(num_steps)
        batches = itertools.islice(_batches_of(iterator), None if wanted == -1 else wanted)
        for run in self._runs(batches):
            preemption.check()
            for outputs in self._evaluate(run):
                if reduce_fn is not None:
                    state = reduce_fn(state, outputs)
            self.calls += len(run)
        return state

    def _runs(self, batches: Iterator[Any]) -> Iterator[list[Any]]:
        """The batches in their order: as many at once as make a program, others one by one."""
        run: list[Any] = []
        for batch in batches:
            if not self._shapes:
                self._begin_with(batch)
            if _shapes_of(batch) != self._shapes:
                if run:
                    yield run
                run = []
                yield [batch]
                continue
            run.append(batch)
            if len(run) == self._count:
                yield run
                run = []
        if run:
            yield run

    def _begin_with(self, batch: Any) -> None:
        self._shapes = _shapes_of(batch)
        spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, batch)
        # The batches of a program.
        self._count = 1 if self._needs_outputs else stacked_loop.most_steps(spec)

    def _evaluate(self, run: list[Any]) -> list[Any]:
        if self._can_compile and _shapes_of(run[0]) == self._shapes:
            try:
                return self._evaluate_in_xla(run)
            except _NOT_COMPILABLE as error:
                self._can_compile = False
                logging.warning(
                    "Evaluation runs without XLA, which can't compile it: %s", error.message
                )
        return [self._in_graph(batch) for batch in run]

    def _evaluate_in_xla(self, run: list[Any]) -> list[Any]:
        if self._needs_outputs:
            return [self._in_xla(batch) for batch in run]
        if self._program is None:
            # A small set of data makes a small program.
            self._count = len(run)
            self._drawn = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._program = stacked_loop.compile_steps(self._step_fn, self._drawn)
        # XLA would compile anew for fewer.
        padded = run + [run[-1]] * (self._count - len(run))
        self._drawn.assign(0)
        stack = tf.nest.map_structure(lambda *parts: tf.stack(parts), *padded)
        self._program(stack, tf.constant(len(run)))
        return [None] * len(run)

    @user_code.not_converted
    def _step(self, batch: Any) -> Any:
        return user_code.converted(self._step_fn)(stacked_loop.OneBatch(batch))


def _batches_of(iterator: Any) -> Iterator[Any]:
    while True:
        try:
            yield next(iterator)
        except loop_fns.END_OF_DATA:
            return


def _shapes_of(batch: Any) -> list[tf.TensorShape]:
    return [part.shape for part in tf.nest.flatten(batch, expand_composites=True)]
