"""Evaluation data that have to end, since all of them are to be read."""

import functools
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.common import errors

__all__ = ["require_end", "timed"]

# Of data of unknown length only very few take as long.
_WARNING_SECONDS = 3600.0
_MOST_SECONDS = 24 * 3600.0
_BATCHES_BETWEEN_LOOKS = 100

_MESSAGE = (
    "An evaluation has read data for %.0f hours, %d batches, and has not come to their end. If "
    "there is none, set `trainer.validation_steps`."
)


def require_end(dataset: Any) -> None:
    """Refuses a dataset, distributed or not, that is known to have no end.

    Raises:
        ConfigValueError: It has none.
    """
    cardinality = getattr(dataset, "cardinality", None)
    # A method of a dataset, a property of a distributed one.
    cardinality = cardinality() if callable(cardinality) else cardinality
    if cardinality is not None and int(cardinality) == tf.data.INFINITE_CARDINALITY:
        raise errors.ConfigValueError(
            "The validation data repeat without end, and `trainer.validation_steps` is -1, which "
            "is all of them. Set it to a number of batches, or leave out the `repeat`."
        )


def timed(build_inputs: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, but to read its dataset without an end is warned of, and then an error.

    This is for data of which nobody knows the length, as of most files: after an hour there is a
    warning, after a day it is a `DataError`.
    """

    @functools.wraps(build_inputs)
    def build_timed(*args: Any, **kwargs: Any) -> Any:
        dataset = build_inputs(*args, **kwargs)
        # On workers of a parameter server, nothing can be asked.
        if not isinstance(dataset, tf.data.Dataset) or not tf.executing_eagerly():
            return dataset
        if dataset.cardinality() != tf.data.UNKNOWN_CARDINALITY:
            return dataset
        return dataset.enumerate().map(_Clock().look)

    return build_timed


class _Clock:
    """Looks how long one reading of the data has taken."""

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
