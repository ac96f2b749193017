"""XLA-compiled loops: training with many steps per program on stacked batches, and evaluation."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import tensorflow as tf
from absl import logging

from official_lite.common import errors, goodput, nests, preemption, user_code
from official_lite.data import stacking
from official_lite.orbit import standard_runner
from official_lite.orbit.utils import loop_fns

RunOnStack = Callable[[Any, tf.Tensor], None]

# The maximum size of a stack of batches. More steps would save no time, and more bytes would not
# fit into caches.
_MAX_STEPS = 200
_MAX_BYTES = 64 * 2**20


class StackedLoop(standard_runner.MeasuredLoop):
    """A training loop that XLA compiles as a whole.

    The loop reads stacks of batches from the data. The compiled program takes a stack and the
    number of steps to run on it, and continues reading where its previous call stopped. Loops may
    therefore have any length, and the same steps run on the same batches regardless of these
    lengths.

    Args:
        step_fn: A step like `StandardTrainer.train_step`. XLA must be able to compile all of it.
            The iterator that the step receives has `__next__` and `get_next`.
        dataset: The batches. `why_not_stackable` must return `None` for them.
        steps: The number of steps per stack.
        batches_per_step: The number of batches that a step fetches.
        wrap_step: Wraps the step when it is traced.
        wrap_fetch: Wraps the function that fetches a stack from an iterator, outside of XLA.
        counts: The int64 variables that count the batches that the steps have read.
    """

    def __init__(
        self,
        step_fn: loop_fns.StepFn,
        dataset: tf.data.Dataset,
        *,
        steps: int,
        batches_per_step: int = 1,
        wrap_step: Callable[[loop_fns.StepFn], loop_fns.StepFn] = lambda step: step,
        wrap_fetch: Callable[[loop_fns.StepFn], loop_fns.StepFn] = lambda fetch: fetch,
        counts: Any = None,
    ) -> None:
        self._steps = steps
        self._batches_per_step = batches_per_step
        stacks = self._stacks_of(dataset)
        self._element_spec = stacks.element_spec
        self._iterator = standard_runner.make_iterator(stacks)
        self._wrap_step = wrap_step
        self._wrap_fetch = wrap_fetch
        self._fetch: loop_fns.StepFn = next
        self._counts = [] if counts is None else tf.nest.flatten(counts)
        # The number of batches drawn from the current stack.
        self._drawn = tf.Variable(0, trainable=False, dtype=tf.int64)
        # The current stack, if the last call ended before it had run all steps of the stack.
        self._left_over: Any = None
        self._steps_left = 0
        self._last_outputs = loop_fns.LastOutputs()
        self._step_fn = step_fn
        self._traced: list[Any] = []

    def _run(self, num_steps: tf.Tensor) -> Any:
        run_whole_stacks, run_on_stack = self.trace()
        missing = int(num_steps)
        while missing:
            if not self._steps_left and missing >= self._steps:
                missing -= int(run_whole_stacks(tf.constant(missing // self._steps)))
                continue
            if not self._steps_left:
                self._draw_stack()
            steps = min(self._steps_left, missing)
            run_on_stack(*nests.tensors_in(self._left_over), tf.constant(steps))
            self._count_steps(steps)
            self._steps_left -= steps
            missing -= steps
        return self._last_outputs.read()

    def trace(self) -> Sequence[Any]:
        if not self._traced:
            self._fetch = self._wrap_fetch(next)
            number = tf.TensorSpec([], tf.int32)
            run_on_stack = self._compile()
            whole = tf.function(
                lambda stacks: self._run_whole_stacks(run_on_stack, stacks), [number]
            )
            # Call `run_on_stack` in a graph for parts of a stack as well, because XLA would compile
            # the program again for an eager call.
            part = tf.function(lambda *args: run_on_stack(*args), [self._element_spec, number])
            self._traced = [one.get_concrete_function() for one in (whole, part)]
        return self._traced

    def retrace(self) -> None:
        self._traced = []
        self._has_run = False

    def read(self, dataset: tf.data.Dataset) -> None:
        standard_runner.exchange(self._iterator, self._stacks_of(dataset))
        self._left_over, self._steps_left = None, 0

    def _compile(self) -> RunOnStack:
        # With an explicit signature, stacks that are read eagerly and in graphs share one trace.
        signature = [self._element_spec, tf.TensorSpec([], tf.int32)]
        step_fn = self._wrap_step(self._step_fn)

        def step(batches: Any) -> None:
            self._last_outputs.keep(step_fn(batches))

        return compile_steps(step, self._drawn, signature, self._batches_per_step)

    def _stacks_of(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        return stacking.stack_batches(dataset, self._steps * self._batches_per_step)

    def _draw_stack(self) -> None:
        self._left_over = self._fetch(self._iterator)
        self._steps_left = int(self._steps_in(self._left_over))
        self._drawn.assign(0)

    def _run_whole_stacks(self, run_on_stack: RunOnStack, num_stacks: tf.Tensor) -> tf.Tensor:
        """Run `num_stacks` stacks and return the number of steps; the last stack may be short."""
        num_steps = 0
        for _ in tf.range(num_stacks):
            stack = self._fetch(self._iterator)
            steps = self._steps_in(stack)
            self._drawn.assign(0)
            run_on_stack(stack, steps)
            self._count_steps(steps)
            num_steps += steps
        return num_steps

    def _count_steps(self, steps: tf.Tensor | int) -> None:
        for count in self._counts:
            count.assign_add(tf.cast(steps * self._batches_per_step, tf.int64))

    def _steps_in(self, stack: Any) -> tf.Tensor:
        return tf.shape(nests.tensors_in(stack)[0])[0] // self._batches_per_step


def compile_steps(
    step_fn: loop_fns.StepFn,
    drawn: tf.Variable,
    signature: Any = None,
    batches_per_step: int = 1,
) -> RunOnStack:
    """Build the program that takes a stack and a number of steps, and runs the steps on it.

    Args:
        step_fn: A step. Its return value is discarded.
        drawn: An int64 variable that counts the batches fetched from the stack.
        signature: The signature of the program.
        batches_per_step: The maximum number of batches that a step may fetch.

    Raises:
        errors.ConfigValueError: The step fetches more batches than that. Raised when the program is
            traced.
    """

    @tf.function(input_signature=signature, jit_compile=True)
    def run_on_stack(stack: Any, num_steps: tf.Tensor) -> None:
        # A loop over `tf.range` would not work, because XLA needs the length of the range at
        # compile time.
        while num_steps > 0:
            # Skip the batches that a step did not fetch, so that each step fetches only its own
            # batches.
            next_step = drawn.read_value() + batches_per_step
            with tf.name_scope(""):
                step_fn(_StackIterator(stack, drawn, batches_per_step))
            drawn.assign(next_step)
            num_steps -= 1

    return run_on_stack


class _BatchesOfStep:
    """An iterator over the batches of one step. XLA needs their number at compile time."""

    def __init__(self, batches_per_step: int) -> None:
        self._batches_per_step = batches_per_step
        self._fetched = 0

    def __iter__(self) -> Self:
        return self

    @user_code.not_converted
    def __next__(self) -> Any:
        self._fetched += 1
        if self._fetched > self._batches_per_step:
            raise errors.ConfigValueError(
                f"The step fetches more than {self._batches_per_step} batches, the number for "
                "which XLA compiled it. Set `runtime.execution` to `graph`, which allows any "
                "number of batches per step."
            )
        return self._next()

    def get_next(self, name: str | None = None) -> Any:
        """Fetch a batch, as `tf.data.Iterator.get_next` does."""
        del name
        return next(self)

    def _next(self) -> Any:
        raise NotImplementedError


class _StackIterator(_BatchesOfStep):
    """An iterator over batches of a stack, for one step inside the compiled program."""

    def __init__(self, stack: Any, drawn: tf.Variable, batches_per_step: int) -> None:
        super().__init__(batches_per_step)
        self._stack = stack
        self._drawn = drawn

    def _next(self) -> Any:
        index = self._drawn.read_value()
        self._drawn.assign_add(1)
        # `part[index]` would not work, because XLA needs the index at compile time.
        return nests.map_parts(lambda part: tf.gather(part, index), self._stack)


class OneBatch(_BatchesOfStep):
    """Holds the single batch with which a step is traced."""

    def __init__(self, batch: Any) -> None:
        super().__init__(batches_per_step=1)
        self._batch = batch

    def _next(self) -> Any:
        # Return a copy of the structure, because a step may remove entries from it.
        return tf.nest.map_structure(lambda part: part, self._batch)


def why_not_stackable(dataset: Any) -> str | None:
    """Return why the batches of a dataset cannot be stacked for XLA, or `None` if they can."""
    if not isinstance(dataset, tf.data.Dataset):
        return "the data are distributed to several replicas"
    for spec in nests.specs_in(dataset.element_spec):
        if not isinstance(spec, tf.TensorSpec):
            return f"the batches contain a {type(spec).__name__.removesuffix('Spec')}"
        if not spec.shape.is_fully_defined():
            return (
                f"the batches may differ in size (shape {spec.shape}); "
                "`drop_remainder=True` fixes the size of a batch"
            )
        if not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool):
            return f"the batches contain {spec.dtype.name} tensors"
    return None


def steps_per_stack(element_spec: Any, steps_per_loop: int, batches_per_step: int = 1) -> int:
    """Return the number of steps to put into one program.

    Args:
        element_spec: The spec of a batch, with static shapes.
        steps_per_loop: The number of steps that are run at once. If possible, the result divides
            this number.
        batches_per_step: The number of batches that a step fetches.
    """
    most = min(steps_per_loop, most_steps(element_spec, batches_per_step))
    fitting = [steps for steps in range(most // 2 + 1, most + 1) if steps_per_loop % steps == 0]
    return max(fitting, default=most)


def most_steps(element_spec: Any, batches_per_step: int = 1) -> int:
    """Return the maximum useful number of steps in one program, given the size of their batches."""
    parts = nests.specs_in(element_spec)
    bytes_per_batch = sum(part.dtype.size * part.shape.num_elements() for part in parts)
    bytes_per_step = max(1, bytes_per_batch * batches_per_step)
    return max(1, min(_MAX_STEPS, _MAX_BYTES // bytes_per_step))


# The errors that TensorFlow raises, before any op runs, if XLA can't compile an op.
NOT_COMPILABLE = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)


class XlaEvalLoop:
    """A loop function `(iterator, num_steps, state, reduce_fn)` that ends when the data end.

    XLA compiles the loop for the size of the first batch. Batches of other sizes, such as the last
    one, are evaluated in a graph. If XLA cannot compile the step, all batches are evaluated in a
    graph.

    Args:
        step_fn: A step like `StandardEvaluator.eval_step`. The iterator that the step receives has
            `__next__` and `get_next`.
        needs_outputs: Whether `reduce_fn` receives the outputs of each step. If false, many steps
            run in one program.

    Attributes:
        calls: The number of steps run so far. Callers may reset it to 0.
    """

    def __init__(self, step_fn: loop_fns.StepFn, *, needs_outputs: bool) -> None:
        self._step_fn = loop_fns.guard_step(step_fn)
        self._needs_outputs = needs_outputs
        self._in_graph = tf.function(self._step, reduce_retracing=True)
        self._in_xla = tf.function(self._step, jit_compile=True)
        self._program: Any = None
        self._shapes: list[tf.TensorShape] = []
        self._count = 0
        self._can_compile = True
        self._has_run = False
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
            for outputs in self._evaluate_run(run):
                if reduce_fn is not None:
                    state = reduce_fn(state, outputs)
            self.calls += len(run)
        return state

    def _runs(self, batches: Iterator[Any]) -> Iterator[list[Any]]:
        """Yield the batches in order, grouped into lists that one program call can evaluate.

        A batch whose shapes differ from those of the first batch gets its own list.
        """
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
        # The number of batches that one call of the compiled program evaluates.
        self._count = 1 if self._needs_outputs else most_steps(nests.tensors_in(batch))

    def _evaluate_run(self, run: list[Any]) -> list[Any]:
        if self._has_run:
            return self._evaluate(run)
        with goodput.measuring("compiling"):
            outputs = self._evaluate(run)
        self._has_run = True
        return outputs

    def _evaluate(self, run: list[Any]) -> list[Any]:
        if self._can_compile and _shapes_of(run[0]) == self._shapes:
            try:
                return self._evaluate_in_xla(run)
            except NOT_COMPILABLE as error:
                self._can_compile = False
                logging.warning(
                    "Evaluating without XLA, because XLA can't compile the evaluation step: %s",
                    error.message,
                )
        return [self._in_graph(batch) for batch in run]

    def _evaluate_in_xla(self, run: list[Any]) -> list[Any]:
        if self._needs_outputs:
            return [self._in_xla(batch) for batch in run]
        if self._program is None:
            # A small dataset may have fewer batches than one program could evaluate. A smaller
            # program is then enough.
            self._count = len(run)
            self._drawn = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._program = compile_steps(self._step_fn, self._drawn)
        # Pad the list of batches, because XLA would compile another program for fewer batches.
        padded = run + [run[-1]] * (self._count - len(run))
        self._drawn.assign(0)
        stack = nests.map_parts(lambda *parts: tf.stack(parts), *padded)
        self._program(stack, tf.constant(len(run)))
        return [None] * len(run)

    @user_code.not_converted
    def _step(self, batch: Any) -> Any:
        return user_code.converted(self._step_fn)(OneBatch(batch))


def _batches_of(iterator: Any) -> Iterator[Any]:
    while True:
        try:
            yield next(iterator)
        except loop_fns.END_OF_DATA:
            return


def _shapes_of(batch: Any) -> list[tf.TensorShape]:
    return [part.shape for part in nests.tensors_in(batch)]
