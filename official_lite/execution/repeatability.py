"""The search for random ops that a resumed run would not repeat, in steps and their data."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import keras_variables
from official_lite.modeling import replica_state

__all__ = [
    "BATCH_SIZES",
    "find_lasting_effects",
    "find_other_numbers",
    "find_random_numbers",
    "warn_of_random_inputs",
    "warn_of_step",
]


# Stateful ops of `tf.random`, whose state is not a variable and therefore not saved.
_OPS = frozenset(
    (
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    )
)

# Name prefixes of ops that change something other than a variable. Such changes can't be undone.
_LASTING_EFFECTS = (
    "LookupTableImport",
    "LookupTableInsert",
    "LookupTableRemove",
    "Barrier",
    "EagerPyFunc",
    "PyFunc",
    "QueueDequeue",
    "QueueEnqueue",
    "StackPop",
    "StackPush",
)

BATCH_SIZES = "official_lite_batch_sizes"
"""The name of the framework's own op that counts batch sizes in Python, outside of training."""

# The class name of the dataset that `Dataset.cache` returns.
_CACHE = "CacheDataset"

# Stateless random ops for which XLA draws different numbers than a graph. For uniform and normal
# numbers, see `modeling.replica_state`.
_OTHER_IN_XLA = frozenset(
    (
        "StatelessMultinomial",
        "StatelessParameterizedTruncatedNormal",
        "StatelessTruncatedNormal",
        "StatelessTruncatedNormalV2",
    )
)

_MAX_NAMES = 5


def warn_of_step(
    functions: Sequence[Any],
    model: keras.Model | tf.Module,
    checkpoint: tf.train.Checkpoint | None = None,
    execution: str = "graph",
) -> None:
    """Warn about random numbers that differ in a resumed run or in the execution mode `graph`.

    Args:
        functions: The concrete functions of the training step.
        model: The model, whose seed generators are not reported, because each step sets them.
        checkpoint: The checkpoint, whose generators are not reported, because a resumed run
            restores them.
        execution: The execution mode.
    """
    if found := sorted(set(find_random_numbers(functions, model, checkpoint))):
        logging.warning(
            "The training step uses random ops whose state is not saved: %s. A resumed run "
            "therefore draws different numbers. Use `tf.random.stateless_*` with a seed derived "
            "from the step, or a `keras.random.SeedGenerator` that is an attribute of a layer, the "
            "trainer or the task. See docs/resume.md.",
            _enumerate(found),
        )
    compiled = execution in ("xla", "xla_loop")
    if compiled and (found := sorted(set(find_other_numbers(functions)))):
        logging.warning(
            "XLA draws different random numbers than the execution mode `graph` in these ops of "
            "the training step: %s. Use the same mode to resume or compare runs. See "
            "docs/resume.md.",
            _enumerate(found),
        )


def find_random_numbers(
    functions: Sequence[Any],
    model: keras.Model | tf.Module,
    checkpoint: tf.train.Checkpoint | None = None,
) -> Iterator[str]:
    """Yield the names of stateful `tf.random` ops and of random generators that are not saved."""
    variables = list(filter(replica_state.is_seed, getattr(model, "variables", [])))
    if checkpoint is not None:
        variables += keras_variables.variables_of(checkpoint)
    known = {copy.handle.ref() for v in variables for copy in keras_variables.local_values(v)}
    for function in functions:
        yield from (node.name for node in _nodes(function) if node.op in _OPS)
        for variable in function.graph.variables:
            is_state = replica_state.is_random_state(variable)
            if is_state and variable.handle.ref() not in known:
                yield variable.name.split(":")[0]


def find_lasting_effects(functions: Sequence[Any]) -> Iterator[str]:
    """Yield the names of ops that change lookup tables or queues, or that call Python."""
    for function in functions:
        for node in _nodes(function):
            is_own = node.name.rpartition("/")[2].startswith(BATCH_SIZES)
            if node.op.startswith(_LASTING_EFFECTS) and not is_own:
                yield node.name


def find_other_numbers(functions: Sequence[Any]) -> list[str]:
    """Return the names of the ops for which XLA draws different random numbers than a graph."""
    ops = _OPS | _OTHER_IN_XLA
    return [node.name for function in functions for node in _nodes(function) if node.op in ops]


def warn_of_random_inputs(dataset: tf.data.Dataset) -> None:
    """Warn about random numbers in the functions of a dataset that a resumed run can't repeat.

    Args:
        dataset: The training data of a task, as `build_inputs` returns them.
    """
    found = dict(_find_random_inputs(dataset, is_cached=False))
    if not found:
        return
    cached = [name for name, is_cached in found.items() if is_cached]
    logging.warning(
        "The training data use random ops whose state is not saved: %s. A resumed run therefore "
        "draws different numbers.%s Use `tf.random.stateless_*` with a seed from "
        "`data.position.enumerate_batches`, or `data.augmentation.augment`. See "
        "docs/how_to/own_data.md.",
        _enumerate(sorted(found)),
        f" `cache` repeats the numbers of the first epoch: {_enumerate(sorted(cached))}."
        if cached
        else "",
    )


def _find_random_inputs(dataset: tf.data.Dataset, *, is_cached: bool) -> Iterator[tuple[str, bool]]:
    """Yield the name of each random op in a dataset, and whether its results are cached."""
    functions = [wrapper.function for wrapper in dataset._functions()]
    for name in find_random_numbers(functions, tf.Module()):
        yield name, is_cached
    is_cached = is_cached or type(dataset).__name__.strip("_") == _CACHE
    for source in dataset._inputs():
        yield from _find_random_inputs(source, is_cached=is_cached)


def _enumerate(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _nodes(function: Any) -> Iterator[Any]:
    """Yield the nodes of a concrete function and of all functions that it calls."""
    graph = function.graph.as_graph_def()
    yield from graph.node
    for called in graph.library.function:
        yield from called.node_def
