"""Averages over the replicas of what each replica updates by itself, such as moving statistics.

In Keras 3 each replica keeps the batch normalization statistics of its own part of the batch, and
so does every layer that assigns to a weight without an `aggregation`. Evaluations on several
replicas would use all of these values, but a checkpoint holds only those of the first replica.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_lite.common import keras_variables
from official_lite.modeling import step_seeds

__all__ = ["MovingStatistics"]


class MovingStatistics:
    """Synchronizer of the variables that each replica updates by itself.

    These are the variables without an `aggregation` that no optimizer updates, and the averages
    that an optimizer keeps of them. Most of them are moving averages, so averaging them after each
    step is equivalent to averaging the values that enter them. Integers have no mean, so a
    difference between them is only reported.

    Create it in the strategy's scope.

    Args:
        checkpoint: The checkpoint of the trainer, which contains everything that has to be the same
            on all replicas. Attributes may still be added to it.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._num_replicas = tf.distribute.get_strategy().num_replicas_in_sync

    def average(self) -> None:
        """Average the variables in one all-reduce; call this in every replica after a step."""
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync == 1:
            return
        by_dtype: dict[tf.DType, list[tf.Variable]] = {}
        for variable in _written(map(keras_variables.raw, self._unsynchronized())):
            if variable.dtype.is_floating:
                by_dtype.setdefault(variable.dtype, []).append(variable)
        if not by_dtype:
            return
        flat = [
            tf.concat([tf.reshape(variable, [-1]) for variable in variables], axis=0)
            for variables in by_dtype.values()
        ]
        averages = context.all_reduce(tf.distribute.ReduceOp.MEAN, flat)
        for variables, average in zip(by_dtype.values(), averages, strict=True):
            sizes = [math.prod(variable.shape) for variable in variables]
            for variable, part in zip(variables, tf.split(average, sizes), strict=True):
                variable.assign(tf.reshape(part, variable.shape))

    def warn_of_differences(self) -> None:
        """Warn about variables that still differ between replicas; call this after a step."""
        if self._num_replicas == 1:
            return
        paths = [
            keras_variables.path_of(variable)
            for variable in self._unsynchronized()
            if not step_seeds.is_random_state(keras_variables.raw(variable))
            and _differs(keras_variables.local_values(variable))
        ]
        if paths:
            logging.warning(
                "Each replica has its own value of %s, because the training step assigns to them "
                "on every replica. Checkpoints keep only the value of the first replica, so they "
                "evaluate differently. Create the variables with an `aggregation`, such as "
                "`add_weight(…, aggregation='sum')` for a counter.",
                ", ".join(paths),
            )

    def _unsynchronized(self) -> Iterator[Any]:
        """Yield the variables that are the same on all replicas only if all assign the same."""
        parts = tf.train.TrackableView(self._checkpoint).descendants()
        # What optimizers own or update is the same on all replicas, except for the averages of
        # what they do not update.
        known: set[int] = set()
        averages: dict[int, int] = {}
        for part in parts:
            if isinstance(part, keras.optimizers.Optimizer):
                own = [*part.variables, *getattr(part, "_trainable_variables", ())]
                known.update(map(_id, own))
                pairs = getattr(part, "shadows", ())
                averages |= {_id(average): _id(weight) for weight, average in pairs}
        known -= {average for average, weight in averages.items() if weight not in known}
        for part in parts:
            if not keras_variables.is_variable(part):
                continue
            variable = keras_variables.raw(part)
            if (
                id(variable) not in known
                and variable.aggregation == tf.VariableAggregation.NONE
                and variable.synchronization != tf.VariableSynchronization.ON_READ
            ):
                known.add(id(variable))
                yield part


def _id(variable: Any) -> int:
    return id(keras_variables.raw(variable))


def _written(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    """Return the variables that the step writes; all of them if it is not traced."""
    if tf.executing_eagerly():
        return list(variables)
    graph = tf.compat.v1.get_default_graph()
    handles = {id(handle) for handle in keras_variables.written_handles(graph)}
    return [
        variable
        for variable in variables
        if any(id(copy.handle) in handles for copy in keras_variables.local_values(variable))
    ]


def _differs(copies: Sequence[tf.Variable]) -> bool:
    first, *others = [copy.numpy() for copy in copies]
    return any(not np.array_equal(first, other) for other in others)
