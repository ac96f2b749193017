"""Loop functions, which turn a function that runs one step into a function that runs many.

A step function takes an iterator (or a nested structure of iterators) and runs one step on the data
that it fetches. All loop functions take `(iterator, num_steps)`.

Steps are guarded: a step that finds no batch changes nothing. In a graph, an op runs as soon as its
inputs are available. When a step reaches the end of the data, all ops that do not use the batch (a
counter, the denominator of a mean, a weight decay) would therefore run once more before the error
stops the loop.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.common import errors, goodput, nests, preemption, terminal, user_code
from official_lite.orbit.utils import tpu_summaries

StepFn = Callable[[Any], Any]
LoopFn = Callable[..., Any]

# The errors that an iterator raises at the end of the data: in eager mode, and in a graph.
END_OF_DATA = (StopIteration, tf.errors.OutOfRangeError)


def create_loop_fn(step_fn: StepFn) -> LoopFn:
    """Create a Python loop that ends early, without an error, when the data end; for evaluation.

    Args:
        step_fn: The step function. `reduce_fn` receives its outputs.

    Returns:
        A function `(iterator, num_steps, state=None, reduce_fn=None)`. It runs `num_steps` steps,
        or until the data end if `num_steps` is -1. It folds each output into the state with
        `state = reduce_fn(state, outputs)`, and returns the final state. A signal that requests a
        stop ends it with an `errors.PreemptedError`.
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
    step_fn = guard_step(step_fn)
    last = LastOutputs()

    # AutoGraph is not used, because converting a `for` loop takes longer than tracing a small step.
    @user_code.not_converted
    def loop_fn(iterator: Iterator[nests.Nest], num_steps: tf.Tensor) -> Any:
        _check_tensor(num_steps)

        def run_step(step: tf.Tensor) -> list[tf.Tensor]:
            # Without this name scope, the names of all ops in the step would begin with "while/".
            with tf.name_scope(""):
                last.keep(step_fn(iterator))
            return [step + 1]

        tf.while_loop(lambda step: step < num_steps, run_step, [tf.zeros_like(num_steps)])
        return last.read()

    return loop_fn


def create_tf_while_loop_fn_with_state(step_fn: StepFn) -> LoopFn:
    """Create a loop like that of `create_tf_while_loop_fn`, with a state passed between steps.

    Returns:
        A function `(iterator, num_steps, state, reduce_fn)` that returns the final state. The
        structure of the state must not change. The shapes of its tensors may change, so outputs can
        be concatenated.
    """
    step_fn = guard_step(step_fn)

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

    @user_code.not_converted
    def keep(self, outputs: nests.Nest) -> None:
        self._outputs = None
        tensors = tf.nest.flatten(outputs, expand_composites=True)
        if not tensors or not all(tf.is_tensor(tensor) for tensor in tensors):
            return
        self._outputs = outputs
        # A `tf.function` may create variables only in its first trace, so later traces reuse them.
        if [holder.dtype for holder in self._kept] != [tensor.dtype for tensor in tensors]:
            with tf.init_scope():
                self._kept = [_create_holder(tensor) for tensor in tensors]
        for holder, tensor in zip(self._kept, tensors, strict=True):
            holder.assign(tensor)

    @user_code.not_converted
    def read(self) -> Any:
        if self._outputs is None:
            return None
        values = [holder.read_value() for holder in self._kept]
        return tf.nest.pack_sequence_as(self._outputs, values, expand_composites=True)


def _create_holder(tensor: tf.Tensor) -> tf.Variable:
    if tensor.shape.is_fully_defined():
        # XLA does not support variables that change their size.
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


# Op types that TensorFlow considers stateful, although they have no side effects.
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp"})

# The suffixes of op types that call functions. These functions are traced before the step can guard
# the ops in them.
_CALLS = ("Call", "While", "If", "Case")

# The stack of steps that are running or being traced; the innermost step is last. A context
# variable would not be visible to a strategy's replica threads.
_steps: list["_Step"] = []


def guard_step(step_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a step so that it has no effect unless every batch that it fetches exists.

    The loops of this package already guard their steps. Use this function for a part of a step that
    fetches batches inside its own `tf.while_loop`, `tf.cond` or `tf.switch_case`::

        def body(count):
            orbit.utils.guard_step(self.micro_step)(iterator)
            return (count + 1,)

    Args:
        step_fn: A function of an iterator or of a nested structure of iterators. A `tf.function` is
            traced as a part of the loop that calls it.

    Returns:
        A function with the same arguments and outputs.
    """
    step_fn = getattr(step_fn, "python_function", step_fn)

    @user_code.not_converted
    def run(iterator: Iterator[nests.Nest]) -> Any:
        step = _Step(iterator)
        for outer in _steps:
            outer.has_guarded_parts = True
        _steps.append(step)
        try:
            outputs = user_code.converted(step_fn)(tf.nest.map_structure(step.watch, iterator))
        finally:
            _steps.pop()
        step.hold_effects()
        return outputs

    return run


def count_batches(step_fn: Callable[[Any], Any], counts: Any) -> Callable[[Any], Any]:
    """Wrap a step so that it counts the batches that it fetches.

    Args:
        step_fn: A function of an iterator or of a nested structure of iterators.
        counts: The int64 variable that counts the batches of each iterator, in that structure.
    """
    step_fn = getattr(step_fn, "python_function", step_fn)

    @user_code.not_converted
    def run(iterator: Iterator[nests.Nest]) -> Any:
        counted = tf.nest.map_structure(
            lambda one, count: _CountedIterator(one, _Counter(count)), iterator, counts
        )
        return user_code.converted(step_fn)(counted)

    return run


def current_batch() -> Any:
    """Return the batch that the current step fetched last, over all replicas.

    Returns:
        The batch, or `None` outside of a step and before its first batch.
    """
    return _steps[-1].batch if _steps else None


@contextlib.contextmanager
def fetched(batch: nests.Nest) -> Iterator[None]:
    """Make `current_batch` return a part of the batch within the context."""
    if not _steps:
        yield
        return
    step = _steps[-1]
    whole, step.batch = step.batch, batch
    try:
        yield
    finally:
        step.batch = whole


class _Step:
    """One run, or one trace, of a guarded step.

    Args:
        iterator: The iterator from which the step fetches, or a nested structure of iterators.
    """

    def __init__(self, iterator: Iterator[nests.Nest]) -> None:
        self.batch: Any = None
        self.has_guarded_parts = False
        self._iterator = iterator
        self._graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._first = self._count_ops()
        # For each fetch, an op that runs once the batch exists, and the indices of the ops that
        # fetch the batch.
        self._fetches: list[tuple[tf.Operation, range]] = []

    def watch(self, iterator: Iterator[nests.Nest]) -> "_WatchedIterator":
        return _WatchedIterator(iterator, self)

    def fetch(self, iterator: Iterator[nests.Nest]) -> Any:
        """Fetch a batch and record which ops fetched it."""
        if self._graph is None or tf.compat.v1.get_default_graph() is not self._graph:
            self.batch = user_code.next_batch(iterator)
            return self.batch
        first = self._count_ops()
        self.batch = user_code.next_batch(iterator)
        with tf.control_dependencies(nests.tensors_in(self.batch)):
            fetched = tf.no_op("batch_is_there")
        self._fetches.append((fetched, range(first, self._count_ops())))
        return self.batch

    def hold_effects(self) -> None:
        """Make every op with a side effect wait for all batches of the step.

        Control dependencies around the step would not work. They do not extend to the threads in
        which a strategy runs its replicas, and they do not apply to ops created before the fetch.
        """
        if self._graph is None:
            return
        ops = self._graph.get_operations()
        is_of_fetch = {index for _, made in self._fetches for index in made}
        others = [i for i in range(self._first, len(ops)) if i not in is_of_fetch]
        handles = self._handles()
        calls = [index for index in others if not handles.isdisjoint(_resources(ops[index]))]
        if not self.has_guarded_parts and any(ops[i].type.endswith(_CALLS) for i in calls):
            logging.warning(
                "A step fetches batches inside its own `tf.while_loop`, `tf.cond` or "
                "`tf.function`. At the end of the data, ops inside it that don't use the batch may "
                "run once more. Fetch the batch outside of it, or wrap the function in "
                "`orbit.utils.guard_step`."
            )
        effects = [index for index in others if _has_effect(ops[index])]
        ends = [(made[-1], fetched) for fetched, made in self._fetches]
        for end, fetched in [*ends, *((index, ops[index]) for index in calls)]:
            leads_there = _indices_before(ops, self._first, end) if effects[:1] < [end] else set()
            for index in effects:
                if index != end and index not in leads_there:
                    ops[index]._add_control_input(fetched)

    def _count_ops(self) -> int:
        return len(self._graph.get_operations()) if self._graph is not None else 0

    def _handles(self) -> set[str]:
        """Return the names that the step's iterator handles have in the step's graph."""
        parts = tf.nest.flatten(self._iterator, expand_composites=True)
        names = {id(outside): inside.name for outside, inside in self._graph.captures}
        return {
            part.name if getattr(part, "graph", None) is self._graph else names.get(id(part), "")
            for part in parts
            if tf.is_tensor(part)
        }


class _Counter:
    """A counter that adds 1 to a variable for each batch that is fetched."""

    def __init__(self, count: tf.Variable) -> None:
        self._count = count

    def fetch(self, iterator: Iterator[nests.Nest]) -> Any:
        batch = user_code.next_batch(iterator)
        parts = filter(tf.is_tensor, tf.nest.flatten(batch, expand_composites=True))
        with tf.control_dependencies(list(parts)):
            self._count.assign_add(1)
        return batch

    def fetch_optional(self, iterator: Any) -> Any:
        batch = iterator.get_next_as_optional()
        self._count.assign_add(tf.cast(batch.has_value(), tf.int64))
        return batch


class _WatchedIterator:
    """An iterator wrapper that lets a `_Step` or a `_Counter` fetch the batches."""

    def __init__(self, iterator: Iterator[nests.Nest], step: "_Step | _Counter") -> None:
        self._watched = iterator
        self._step = step

    def __iter__(self) -> "_WatchedIterator":
        return self

    def __next__(self) -> Any:
        return self._step.fetch(self._watched)

    def get_next(self, name: str | None = None) -> Any:
        del name
        return self._step.fetch(self._watched)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watched, name)

    @property  # type: ignore[misc]  # AutoGraph and `tf.function` check for iterators by class.
    def __class__(self) -> Any:
        return self._watched.__class__


class _CountedIterator(_WatchedIterator):
    """An iterator wrapper that counts batches, including batches fetched as optionals."""

    def get_next_as_optional(self) -> Any:
        counter: Any = self._step
        return counter.fetch_optional(self._watched)

    def __getattr__(self, name: str) -> Any:
        if name == "__tf_tracing_type__":
            terminal.warn_once(
                "The training step passes its iterator to a `tf.function`, in which batches can't "
                "be counted, so a resumed run may continue at the wrong batch. Pass batches to the "
                "function, or remove its decorator: the step is compiled anyway."
            )
        return getattr(self._watched, name)


def _has_effect(op: tf.Operation) -> bool:
    return bool(op.op_def.is_stateful) and op.type not in _READS


def _resources(op: tf.Operation) -> set[str]:
    return {part.name for part in op.inputs if part.dtype in (tf.resource, tf.variant)}


def _indices_before(ops: Sequence[tf.Operation], first: int, end: int) -> set[int]:
    """Return the indices, from `first` on, of the op at `end` and all ops that must run before it.

    An op runs after its inputs and control inputs. In addition, ops that share a resource run in
    the order of their creation, and so do stateful ops without a resource.
    """
    found: set[int] = set()
    names = {ops[end].name}
    resources: set[str] = set()
    is_chained = False
    for index in range(end, first - 1, -1):
        op = ops[index]
        own = _resources(op)
        has_chain = bool(op.op_def.is_stateful) and not own
        if op.name in names or not own.isdisjoint(resources) or (is_chained and has_chain):
            found.add(index)
            names.update(_names(part.op for part in op.inputs), _names(op.control_inputs))
            resources |= own
            is_chained = is_chained or has_chain
    return found


def _names(ops: Iterable[tf.Operation]) -> set[str]:
    return {op.name for op in ops}
