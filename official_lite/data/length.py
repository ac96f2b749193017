"""Epoch lengths, repetition of training data, and checks that evaluation data end."""

import functools
import time
import weakref
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official_lite.common import errors, nests
from official_lite.data import position

__all__ = [
    "epoch_length",
    "first_batches",
    "is_infinite",
    "repeat",
    "require_end",
    "set_epoch_length",
    "watch_cardinality",
]

# Maps each source that repeats its own data to its epoch length in batches.
_EPOCH_LENGTHS: weakref.WeakKeyDictionary[tf.data.Dataset, Fraction] = weakref.WeakKeyDictionary()

# Dataset types that preserve the number of elements per epoch.
_SAME_LENGTH = position.ONE_TO_ONE | {"CacheDataset", "RepeatDataset", "ShuffleDataset"}

_BATCHES = ("BatchDataset", "ParallelBatchDataset")


def set_epoch_length(dataset: tf.data.Dataset, num_batches: Fraction) -> None:
    """Record the number of batches in an epoch of a source that repeats its data."""
    _EPOCH_LENGTHS[dataset] = num_batches


def epoch_length(dataset: tf.data.Dataset) -> Fraction | None:
    """Return the number of elements in one pass over the data; None if it is unknown.

    If a dataset repeats a dataset of known length, this is the length of one repetition. It need
    not be an integer, because a batch may hold the last examples of one epoch and the first of the
    next.
    """
    if dataset in _EPOCH_LENGTHS:
        return _EPOCH_LENGTHS[dataset]
    cardinality = int(dataset.cardinality())
    if cardinality >= 0:
        return Fraction(cardinality)
    if cardinality != tf.data.INFINITE_CARDINALITY:
        return None
    name = type(dataset).__name__.strip("_")
    if name not in (*_SAME_LENGTH, *_BATCHES):
        return None
    # Skip the infinite counter that `enumerate` zips with the data.
    lengths = {epoch_length(each) for each in dataset._inputs() if not _is_counter(each)}
    length = lengths.pop() if len(lengths) == 1 else None
    if length is None or name in _SAME_LENGTH:
        return length
    return length / int(dataset._batch_size)


def _is_counter(dataset: tf.data.Dataset) -> bool:
    return type(dataset).__name__ == "_VariantDataset" and is_infinite(dataset)


def repeat(build_inputs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `build_inputs` so that the dataset it returns repeats indefinitely.

    Repeating a dataset that already repeats changes nothing, so a task may return either kind.
    """

    @functools.wraps(build_inputs)
    def repeated(*args: Any, **kwargs: Any) -> Any:
        dataset = build_inputs(*args, **kwargs)
        return dataset.repeat() if isinstance(dataset, tf.data.Dataset) else dataset

    return repeated


# The number of seconds after which an evaluation pass over data of unknown length logs a warning.
# Passes very rarely take longer.
_WARNING_SECONDS = 3600.0

_MAX_SECONDS = 24 * 3600.0

_BATCHES_BETWEEN_LOOKS = 100

_MESSAGE = (
    "An evaluation has been reading data for %.0f hours (%d batches) without reaching the end. If "
    "the dataset is infinite, set `trainer.validation_steps`."
)


def require_end(dataset: tf.data.Dataset | tf.distribute.DistributedDataset) -> None:
    """Raise an error if a dataset, distributed or not, is known to be infinite.

    Raises:
        ConfigValueError: The dataset is infinite.
    """
    if is_infinite(dataset):
        raise errors.ConfigValueError(
            "The evaluation data repeat forever, but all of the data are requested, because "
            "`trainer.validation_steps` is -1 or the mode is `test`. Remove the `repeat`, or, for "
            "validation data, set `trainer.validation_steps` to a number of batches."
        )


def is_infinite(dataset: tf.data.Dataset | tf.distribute.DistributedDataset) -> bool:
    """Return whether a dataset, distributed or not, is known to be infinite."""
    cardinality = getattr(dataset, "cardinality", None)
    # `cardinality` is a method of a dataset, but a property of a distributed dataset.
    cardinality = cardinality() if callable(cardinality) else cardinality
    return cardinality is not None and int(cardinality) == tf.data.INFINITE_CARDINALITY


def watch_cardinality(build_inputs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `build_inputs`: warn if reading the dataset takes an hour, raise after a day.

    The error is a `DataError`. Only datasets of unknown length, such as those read from most files,
    are timed.
    """

    @functools.wraps(build_inputs)
    def build_timed(*args: Any, **kwargs: Any) -> Any:
        dataset = build_inputs(*args, **kwargs)
        # The workers of parameter server training trace this function in a graph, where the dataset
        # can't be inspected.
        if not isinstance(dataset, tf.data.Dataset) or not tf.executing_eagerly():
            return dataset
        if dataset.cardinality() != tf.data.UNKNOWN_CARDINALITY:
            return dataset
        return dataset.enumerate().map(_Clock().look)

    return build_timed


class _Clock:
    """A timer for passes over a dataset. It warns after an hour and raises an error after a day."""

    def __init__(self) -> None:
        self._started = 0.0
        self._has_warned = False

    def look(self, index: tf.Tensor, batch: nests.Nest) -> nests.Nest:
        looked = tf.cond(
            index % _BATCHES_BETWEEN_LOOKS == 0,
            lambda: tf.numpy_function(self._look, [index], tf.int64),
            lambda: index,
        )
        with tf.control_dependencies([looked]):
            return nests.map_parts(tf.identity, batch)

    def _look(self, index: np.int64) -> np.int64:
        now = time.monotonic()
        if index == 0:
            self._started, self._has_warned = now, False
        seconds = now - self._started
        if seconds > _MAX_SECONDS:
            raise errors.DataError(_MESSAGE % (seconds / 3600, index))
        if seconds > _WARNING_SECONDS and not self._has_warned:
            self._has_warned = True
            logging.warning(_MESSAGE, seconds / 3600, index)
        return index


def first_batches(
    build_inputs: Callable[..., Any], count: int, seed: int, *, repeat: bool
) -> Callable[..., Any]:
    """Wrap `build_inputs` so that its dataset holds only the first training batches.

    The seed determines these batches. A source that supports positions (see `position`) returns the
    same batches every time, in training and in evaluation.

    Args:
        build_inputs: Builds one input pipeline of training data.
        count: The number of global batches.
        seed: The seed of the run.
        repeat: Whether the batches repeat indefinitely, starting with the batch at which a resumed
            training run would continue. Otherwise they are read once.
    """

    @functools.wraps(build_inputs)
    def build(*args: Any, **kwargs: Any) -> tf.data.Dataset:
        asked = position.current()
        with position.begin_at(0, seed) as start:
            dataset = build_inputs(*args, **kwargs)
        if not isinstance(dataset, tf.data.Dataset):
            raise errors.ConfigTypeError(
                f"`build_inputs` returned a {type(dataset).__name__}, whose first batches can't "
                "be selected. Expected a `tf.data.Dataset`."
            )
        context = kwargs.get("input_context")
        # Cache the batches, because random augmentations would otherwise change them on every pass.
        dataset = dataset.take(position.Position(count, seed).batches_of(context)).cache()
        if not repeat:
            _warn_if_others(start)
            return dataset
        if asked is None:
            return dataset.repeat()
        asked.is_kept |= start.is_kept
        return dataset.repeat().skip(asked.batches_of(context))

    return build


def _warn_if_others(start: position.Position) -> None:
    if not start.is_kept:
        logging.warning(
            "The first batches of the training data may differ each time they are read, and "
            "between training and evaluation, because `build_inputs` does not keep the position in "
            "the data. See docs/resume.md."
        )
