"""Checks that evaluation data ends, because an evaluation reads all of it."""

import functools
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.common import errors

__all__ = ["require_end", "timed"]

# Reading data of unknown length very rarely takes this long.
_WARNING_SECONDS = 3600.0
_MOST_SECONDS = 24 * 3600.0
_BATCHES_BETWEEN_LOOKS = 100

_MESSAGE = (
    "An evaluation has read data for %.0f hours, %d batches, and has not come to their end. If "
    "there is none, set `trainer.validation_steps`."
)


def require_end(dataset: Any) -> None:
    """Raise an error if a dataset, distributed or not, is known to be infinite.

    Raises:
        ConfigValueError: The dataset is infinite.
    """
    cardinality = getattr(dataset, "cardinality", None)
    # `cardinality` is a method of a dataset, but a property of a distributed dataset.
    cardinality = cardinality() if callable(cardinality) else cardinality
    if cardinality is not None and int(cardinality) == tf.data.INFINITE_CARDINALITY:
        raise errors.ConfigValueError(
            "The validation data repeat without end, and `trainer.validation_steps` is -1, which "
            "is all of them. Set it to a number of batches, or leave out the `repeat`."
        )


def timed(build_inputs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `build_inputs`: warn if reading the dataset takes an hour, raise after a day.

    The error is a `DataError`. Only datasets of unknown length, such as those read from most files,
    are timed.
    """

    @functools.wraps(build_inputs)
    def build_timed(*args: Any, **kwargs: Any) -> Any:
        dataset = build_inputs(*args, **kwargs)
        # Workers of a parameter server trace this in a graph, where the dataset cannot be
        # inspected.
        if not isinstance(dataset, tf.data.Dataset) or not tf.executing_eagerly():
            return dataset
        if dataset.cardinality() != tf.data.UNKNOWN_CARDINALITY:
            return dataset
        return dataset.enumerate().map(_Clock().look)

    return build_timed


class _Clock:
    """A timer of one pass over the data."""

    def __init__(self) -> None:
        self._started = 0.0
        self._has_warned = False

    def look(self, index: tf.Tensor, batch: Any) -> Any:
        looked = tf.cond(
            index % _BATCHES_BETWEEN_LOOKS == 0,
            lambda: tf.numpy_function(self._look, [index], tf.int64),
            lambda: index,
        )
        with tf.control_dependencies([looked]):
            return tf.nest.map_structure(tf.identity, batch)

    def _look(self, index: Any) -> Any:
        now = time.monotonic()
        if index == 0:
            self._started, self._has_warned = now, False
        seconds = now - self._started
        if seconds > _MOST_SECONDS:
            raise errors.DataError(_MESSAGE % (seconds / 3600, index))
        if seconds > _WARNING_SECONDS and not self._has_warned:
            self._has_warned = True
            logging.warning(_MESSAGE, seconds / 3600, index)
        return index
