"""The search for random numbers in a training step that a resumed run would not repeat."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import keras_variables
from official_lite.modeling import step_seeds

__all__ = ["find_random_numbers", "warn_of_random_numbers"]


# Ops of `tf.random` whose state is not a variable.
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

_MOST_NAMES = 5


def warn_of_random_numbers(
    functions: Sequence[Any],
    model: keras.Model | tf.Module,
    checkpoint: tf.train.Checkpoint | None = None,
) -> None:
    """Warn once about random numbers that a resumed run would not repeat.

    Args:
        functions: The concrete functions of the training step.
        model: The model; the step sets the model's own seed generators.
        checkpoint: The checkpoint; the generators in it are restored when a run resumes.
    """
    found = sorted(set(find_random_numbers(functions, model, checkpoint)))
    if not found:
        return
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    logging.warning(
        "The training step uses random ops whose state is not saved, so a resumed run draws other "
        "numbers: %s%s. Use `tf.random.stateless_*` with a seed derived from the step, or a "
        "`keras.random.SeedGenerator` that is an attribute of a layer, the trainer or the task. "
        "See docs/resume.md.",
        ", ".join(found[:_MOST_NAMES]),
        more,
    )


def find_random_numbers(
    functions: Sequence[Any],
    model: keras.Model | tf.Module,
    checkpoint: tf.train.Checkpoint | None = None,
) -> Iterator[str]:
    """Yield the names of stateful ops of `tf.random`, and of generators that are not saved."""
    variables = list(filter(step_seeds.is_seed, getattr(model, "variables", [])))
    if checkpoint is not None:
        variables += keras_variables.variables_of(checkpoint)
    known = {copy.handle.ref() for v in variables for copy in keras_variables.local_values(v)}
    for function in functions:
        graph = function.graph.as_graph_def()
        for nodes in (graph.node, *(one.node_def for one in graph.library.function)):
            yield from (node.name for node in nodes if node.op in _OPS)
        for variable in function.graph.variables:
            is_state = step_seeds.is_random_state(variable)
            if is_state and variable.handle.ref() not in known:
                yield variable.name.split(":")[0]
