"""Which features the records have, for those who ask for others.

TensorFlow says which feature it misses, and neither in which file nor which there are instead.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import message

from official_lite.common import errors, suggestions
from official_lite.data import damaged_files
from official_lite.data.whole_batches import FeatureDecoder

__all__ = ["find_record_without", "require"]

# Nobody should wait for long to hear why a run has failed.
_MOST_SECONDS = 20.0


def require(
    files: Sequence[str],
    dataset_fn: damaged_files.DatasetFn,
    pattern: object,
    decoder_fn: Callable[..., Any] | None,
) -> None:
    """Looks for what the decoder wants in the first record there is, before a model is built.

    Args:
        files: The files.
        dataset_fn: Makes a dataset of one.
        pattern: What they were found by, for the message.
        decoder_fn: Decodes the records; only the method of a `FeatureDecoder` is known to need
            features.

    Raises:
        DataError: There is no record, it can't be read, or it lacks a feature.
    """
    damaged_files.require_records(files, dataset_fn, pattern)
    decoder = getattr(decoder_fn, "__self__", None)
    if not isinstance(decoder, FeatureDecoder) or not tf.executing_eagerly():
        return
    for file in files:
        for record in dataset_fn(file).take(1):
            names = _names(record)
            for wanted in decoder.required_features:
                if names is not None and wanted not in names:
                    raise errors.DataError(_describe(file, wanted, names))
            return


def find_record_without(feature: str, *, is_training: bool) -> str | None:
    """Reads the files that were read again, for the first record that lacks a feature.

    Args:
        feature: Its name.
        is_training: Whether it was missed in training; then those files come first.

    Returns:
        A sentence that names the file and the nearest feature; None if no record lacks it.
    """
    deadline = time.monotonic() + _MOST_SECONDS
    for file, dataset_fn in damaged_files.remembered(is_training):
        for record in dataset_fn(file):
            names = _names(record)
            if names is not None and feature not in names:
                return _describe(file, feature, names)
            if time.monotonic() > deadline:
                return None
    return None


def _names(record: Any) -> Mapping[str, Any] | None:
    """The features of a record by name; None if it is no serialized `tf.train.Example`."""
    if not isinstance(record, tf.Tensor) or record.dtype != tf.string or record.shape.rank:
        return None
    try:
        features: Mapping[str, Any] = tf.train.Example.FromString(record.numpy()).features.feature
    except message.DecodeError:
        return None
    return features


def _describe(file: str, feature: str, names: Mapping[str, Any]) -> str:
    hint = suggestions.did_you_mean(feature, names)
    return f"`{file}` has a record without the feature {feature!r}. {hint}".rstrip()
