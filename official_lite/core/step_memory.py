"""An estimate of the memory that a training step takes, from its graph and without running it."""

import collections
import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.common import error_report, keras_variables, nests, terminal

__all__ = ["StepMemory", "estimate", "log_estimate"]

_MEBI = 2**20

# Op types whose outputs share the buffers of their inputs with the same index.
_ALIASES = frozenset(
    (
        "CheckNumerics",
        "EnsureShape",
        "ExpandDims",
        "Identity",
        "IdentityN",
        "PreventGradient",
        "Reshape",
        "Squeeze",
        "StopGradient",
    )
)

# Op types that read only the shape of an input. TensorFlow computes the shape in advance, so the
# input need not be kept in memory for them.
_READ_SHAPES = frozenset(("OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"))

# Substrings of the names of op types that can't overwrite an input with an output of the same size.
_NOT_IN_PLACE = ("MatMul", "Einsum", "Conv", "Transpose", "Pool", "Gather", "Reverse", "Concat")

# The suffixes of op types that call functions.
_CALLS = ("Call", "While", "If", "Case")

# The number of tensors to list.
_MAX_TENSORS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepMemory:
    """The memory of a training step on one replica, in bytes.

    Attributes:
        parameters: The variables of the model.
        state: The other variables that the step uses: slots and averages of the optimizer, sums of
            gradients, and metrics.
        activations: The largest total size of the tensors that exist at the same time: the batch,
            activations, gradients and temporary results.
        largest: The names and sizes of the largest of these tensors.
        batch_size: The number of examples that a replica computes at a time.
        is_complete: Whether all sizes are known. The sizes of ragged tensors, and of the tensors
            that loops keep for their gradients, are unknown.
    """

    parameters: int
    state: int
    activations: int
    largest: Sequence[tuple[str, int]] = ()
    batch_size: int | None = None
    is_complete: bool = True

    @property
    def total(self) -> int:
        return self.parameters + self.state + self.activations

    def describe(self) -> str:
        """Return a line with the total and its parts."""
        at_least = "" if self.is_complete else "at least "
        examples = f" of {self.batch_size} examples" if self.batch_size else ""
        return (
            f"Estimated memory of a training step on each replica: {at_least}"
            f"{_mebi(self.total)} MiB ({_mebi(self.parameters)} for the parameters, "
            f"{_mebi(self.state)} for the optimizer and other variables, "
            f"{_mebi(self.activations)} for the activations and gradients{examples})."
        )


def log_estimate(trainer: orbit.StandardTrainer) -> None:
    """Log the estimate for a trainer, or why there is none."""
    if not isinstance(trainer, orbit.StandardTrainer):
        return
    if getattr(trainer, "has_coordinator", False):
        logging.info("The memory of a training step is not estimated in parameter-server training.")
        return
    try:
        memory = estimate(trainer)
    except Exception as error:
        # Do not fail the dry run that calls this function: it also runs the step itself.
        logging.info("The memory of the step can't be estimated: %s", error_report.headline(error))
        return
    logging.info("%s", memory.describe())
    lines = [f"  {_mebi(size):>9} MiB  {name}" for name, size in memory.largest]
    logging.info(
        "The largest tensors when the step uses the most memory:\n%s",
        "\n".join(lines),
        extra=terminal.DETAIL,
    )


def estimate(trainer: orbit.StandardTrainer) -> StepMemory:
    """Estimate the memory of a training step; call this function in the strategy's scope.

    The step is traced for its first batch. TensorFlow runs the ops of a graph in about the order in
    which they were created and frees each tensor after its last use. XLA orders and merges ops
    itself, so the estimate holds for the execution mode `graph`.

    Args:
        trainer: A trainer whose step runs in this process. Its data and variables are not changed.
    """
    return _measure(trainer, *_trace(trainer))


def _trace(trainer: orbit.StandardTrainer) -> tuple[Any, list[nests.Nest]]:
    """Return the concrete function of a step, and the first batch of each dataset."""
    structure = trainer.train_dataset
    batches = [next(iter(data)) for data in tf.nest.flatten(structure)]

    @tf.function(autograph=False)
    def step(*inputs: nests.Nest) -> Any:
        iterators = map(itertools.repeat, inputs)
        return trainer.train_step(tf.nest.pack_sequence_as(structure, list(iterators)))

    specs = [tf.nest.map_structure(tf.type_spec_from_value, batch) for batch in batches]
    return step.get_concrete_function(*specs), batches


def _measure(
    trainer: orbit.StandardTrainer, function: Any, batches: Sequence[nests.Nest]
) -> StepMemory:
    """Return the memory of a traced step on the first replica."""
    strategy = tf.distribute.get_strategy()
    has_others = strategy.num_replicas_in_sync > 1
    other_devices = frozenset(strategy.extended.worker_devices[1:] if has_others else ())
    peak = _Peak(function.graph, other_devices)
    variables = {
        handle.ref(): _bytes(spec) or 0
        for handle in function.captured_inputs
        if handle.dtype == tf.resource
        and handle.device not in other_devices
        and (spec := keras_variables.value_spec(handle)) is not None
    }
    model = orbit.runner.model_of(trainer)
    parameters = sum(
        variables.get(keras_variables.local_values(variable)[0].handle.ref(), 0)
        for variable in (model.variables if model is not None else ())
    )
    local = tf.nest.map_structure(lambda b: strategy.experimental_local_results(b)[0], batches)
    tensors = nests.tensors_in(local)
    sizes = [tensor.shape[0] for tensor in tensors if tensor.shape.rank]
    return StepMemory(
        parameters=parameters,
        state=sum(variables.values()) - parameters,
        activations=peak.size + sum(_bytes(tensor) or 0 for tensor in tensors),
        largest=peak.largest(_MAX_TENSORS),
        batch_size=sizes[0] if sizes else None,
        is_complete=peak.is_complete,
    )


class _Peak:
    """The moment at which the tensors of a graph take the most memory.

    Args:
        graph: The graph of a function.
        other_devices: Devices whose ops are left out.

    Attributes:
        size: The size of the tensors in bytes, including those in called functions.
        is_complete: Whether all sizes are known.
    """

    size: int

    def __init__(self, graph: tf.Graph, other_devices: Collection[str]) -> None:
        self.is_complete = True
        # The buffer of each tensor, by the tensor's name. A buffer has the name of the first tensor
        # in it.
        self._buffers: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._births: dict[str, int] = {}
        self._deaths: dict[str, int] = {}
        operations = [op for op in _needed(graph) if op.device not in other_devices]
        for index, operation in enumerate(operations):
            self._add(index, operation)
        for tensor in graph.outputs:
            if tensor.name in self._buffers:
                self._deaths[self._buffers[tensor.name]] = len(operations)
        self._overwrite(operations)
        calls = {
            index: [_Peak(called, other_devices) for called in _called_graphs(operation)]
            for index, operation in enumerate(operations)
        }
        self.is_complete &= all(peak.is_complete for peaks in calls.values() for peak in peaks)
        changes: collections.Counter[int] = collections.Counter()
        for buffer, size in self._sizes.items():
            changes[self._births[buffer]] += size
            changes[self._deaths[buffer] + 1] -= size
        alive = itertools.accumulate(changes[index] for index in range(len(operations)))
        totals = [
            size + max((peak.size for peak in calls[index]), default=0)
            for index, size in enumerate(alive)
        ]
        self.size = max(totals, default=0)
        self._index = totals.index(self.size) if totals else 0
        self._inner = max(calls.get(self._index, ()), key=lambda peak: peak.size, default=None)

    def largest(self, count: int) -> list[tuple[str, int]]:
        """Return the names and sizes of the largest tensors, largest first."""
        found = self._inner.largest(count) if self._inner else []
        found += [
            (buffer, size)
            for buffer, size in self._sizes.items()
            if self._births[buffer] <= self._index <= self._deaths[buffer]
        ]
        return sorted(found, key=lambda pair: -pair[1])[:count]

    def _add(self, index: int, operation: tf.Operation) -> None:
        """Record the buffers that an op reads and creates."""
        if operation.type not in _READ_SHAPES:
            for tensor in operation.inputs:
                if tensor.name in self._buffers:
                    self._deaths[self._buffers[tensor.name]] = index
        # The output of these ops is in a buffer of the caller or of the variable.
        if operation.type in ("Placeholder", "ReadVariableOp"):
            return
        for number, tensor in enumerate(operation.outputs):
            source = _shared_input(operation, number)
            if source is not None:
                if source.name in self._buffers:
                    self._buffers[tensor.name] = self._buffers[source.name]
                continue
            size = _bytes(tensor)
            self.is_complete &= size is not None
            if size:
                self._buffers[tensor.name] = tensor.name
                self._sizes[tensor.name] = size
                self._births[tensor.name] = self._deaths[tensor.name] = index

    def _overwrite(self, operations: Sequence[tf.Operation]) -> None:
        """Shorten the lifetime of buffers that an elementwise op can overwrite with its output."""
        for index, operation in enumerate(operations):
            if any(part in operation.type for part in (*_NOT_IN_PLACE, *_CALLS)):
                continue
            sizes = [self._sizes[t.name] for t in operation.outputs if t.name in self._sizes]
            for tensor in operation.inputs:
                buffer = self._buffers.get(tensor.name, "")
                is_last = self._deaths.get(buffer) == index > self._births[buffer]
                if sizes and is_last and self._sizes[buffer] == sizes[0]:
                    self._deaths[buffer] = index - 1
                    break


def _needed(graph: Any) -> list[tf.Operation]:
    """Return the ops of a function that run, in the order in which they were created.

    Other ops are excluded: TensorFlow creates many gradient ops whose results nothing uses.
    """
    pending = [*(tensor.op for tensor in graph.outputs), *graph.control_outputs]
    found = set(pending)
    while pending:
        operation = pending.pop()
        for before in (*(t.op for t in operation.inputs), *operation.control_inputs):
            if before not in found:
                found.add(before)
                pending.append(before)
    return [operation for operation in graph.get_operations() if operation in found]


def _shared_input(operation: tf.Operation, number: int) -> tf.Tensor | None:
    """Return the input that shares its buffer with an output; None if the output has its own."""
    if operation.type in _ALIASES:
        return operation.inputs[number]
    if operation.type == "Unpack" and operation.get_attr("axis") == 0:
        return operation.inputs[0]
    if operation.type.endswith("While"):
        # If the body of a loop returns an input unchanged, the output shares the input's buffer.
        (body,) = _called_graphs(operation)
        tensor = body.outputs[number]
        while tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
        if tensor is body.inputs[number]:
            return operation.inputs[number]
    return None


def _called_graphs(operation: tf.Operation) -> Iterator[Any]:
    """Yield the graphs of the functions that an op calls, except for the condition of a loop."""
    if not operation.type.endswith(_CALLS):
        return
    attributes = operation.node_def.attr
    for name in ("f", "body", "then_branch", "else_branch", "branches"):
        if name not in attributes:
            continue
        for called in attributes[name].list.func or [attributes[name].func]:
            graph: Any = operation.graph
            # A function may be registered only in an outer graph.
            while graph._get_function(called.name) is None:
                graph = graph.outer_graph
            yield graph._get_function(called.name).graph


def _bytes(tensor: tf.Tensor | tf.TensorSpec) -> int | None:
    """Return the size of a tensor; None if it is unknown."""
    if tensor.dtype in (tf.resource, tf.string):
        return 0
    is_known = tensor.dtype != tf.variant and tensor.shape.is_fully_defined()
    return tensor.dtype.size * math.prod(tensor.shape) if is_known else None


def _mebi(size: int) -> str:
    return f"{size / _MEBI:,.1f}"
