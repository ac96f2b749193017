"""Guards for steps at the end of the data: a step that finds no batch changes nothing.

In a graph, an op runs as soon as its inputs are available. When a step reaches the end of the data,
all ops that do not use the batch (a counter, the denominator of a mean, a weight decay) would
therefore run once more before the error stops the loop.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.common import nests, terminal, user_code

__all__ = ["count_batches", "current_batch", "fetched", "guard_step"]

# Stateful for TensorFlow, but without an effect.
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp"})

# Ops with functions of their own, whose insides are traced before they can be guarded.
_CALLS = ("Call", "While", "If", "Case")

# The steps that are running or being traced, the innermost last. Not a context variable: the
# threads of a strategy's replicas have to see it.
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
        # An op that runs when a batch is there, and the range of the ops that have fetched it.
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
                "`tf.function`. At the end of the data, ops there that don't use the batch may "
                "run once more. Fetch the batch outside, or wrap the function in "
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
        """Return the names of the iterators' resources in the step's graph."""
        parts = tf.nest.flatten(self._iterator, expand_composites=True)
        names = {id(outside): inside.name for outside, inside in self._graph.captures}
        return {
            part.name if getattr(part, "graph", None) is self._graph else names.get(id(part), "")
            for part in parts
            if tf.is_tensor(part)
        }


class _Counter:
    """Adds 1 to a variable for each batch that is fetched."""

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
    """An iterator that leaves its fetches to another object and otherwise is like the original."""

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

    @property  # type: ignore[misc]  # AutoGraph and `tf.function` ask whether it is an iterator.
    def __class__(self) -> Any:
        return self._watched.__class__


class _CountedIterator(_WatchedIterator):
    """An iterator that counts its batches, also in a loop of TensorFlow over it."""

    def get_next_as_optional(self) -> Any:
        counter: Any = self._step
        return counter.fetch_optional(self._watched)

    def __getattr__(self, name: str) -> Any:
        if name == "__tf_tracing_type__":
            terminal.warn_once(
                "The training step passes its iterator to a `tf.function`, in which batches can't "
                "be counted, so a resumed run may continue at another batch. Pass it the batches, "
                "or remove the decorator: the step is compiled anyway."
            )
        return getattr(self._watched, name)


def _has_effect(op: tf.Operation) -> bool:
    return bool(op.op_def.is_stateful) and op.type not in _READS


def _resources(op: tf.Operation) -> set[str]:
    return {part.name for part in op.inputs if part.dtype in (tf.resource, tf.variant)}


def _indices_before(ops: Sequence[tf.Operation], first: int, end: int) -> set[int]:
    """Return which ops from `first` on must run before the op at `end`.

    TensorFlow runs ops that share a resource in creation order, and also stateful ops without a
    resource. Both therefore count as dependencies.
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
