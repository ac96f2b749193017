"""Which features the records have, for those who ask for others.

TensorFlow says which feature it misses, or finds of another type or length, but not in which file.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import message

from official_lite.common import errors, suggestions
from official_lite.data import damaged_files
from official_lite.data.whole_batches import FeatureDecoder

__all__ = ["find_culprit", "is_complaint", "require"]

# Of a file, the features of a record and TensorFlow's words: a sentence, if they are of this one.
_Describe = Callable[[str, Mapping[str, Any], Mapping[str, str]], str | None]

# By the lists of a `tf.train.Feature`.
_TYPES = {"int64_list": "int64", "float_list": "float", "bytes_list": "string"}

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
            features = _features(record)
            for wanted in decoder.required_features:
                if features is not None and wanted not in features:
                    raise errors.DataError(_describe_missing(file, wanted, features))
            return


def is_complaint(text: str) -> bool:
    """Whether TensorFlow says with it that it misses a feature, or finds another than described."""
    return _complaint(text) is not None


def find_culprit(text: str, *, is_training: bool) -> str | None:
    """Reads the files that were read again, for the first record that a complaint is about.

    Args:
        text: What TensorFlow says.
        is_training: Whether it was said in training; then those files come first.

    Returns:
        A sentence that names the file and what is wrong; None if there is no such record.
    """
    complaint = _complaint(text)
    if complaint is None:
        return None
    describe, said = complaint
    deadline = time.monotonic() + _MOST_SECONDS
    for file, dataset_fn in damaged_files.remembered(is_training):
        for record in dataset_fn(file):
            features = _features(record)
            if features is not None and (found := describe(file, features, said)):
                return found
            if time.monotonic() > deadline:
                return None
    return None


def _complaint(text: str) -> tuple[_Describe, Mapping[str, str]] | None:
    """How to tell what TensorFlow says of a feature, and its words."""
    for pattern, describe in _COMPLAINTS.items():
        if match := pattern.search(text):
            return describe, match.groupdict()
    return None


def _features(record: Any) -> Mapping[str, Any] | None:
    """The features of a record by name; None if it is no serialized `tf.train.Example`."""
    if not isinstance(record, tf.Tensor) or record.dtype != tf.string or record.shape.rank:
        return None
    try:
        features: Mapping[str, Any] = tf.train.Example.FromString(record.numpy()).features.feature
    except message.DecodeError:
        return None
    return features


def _describe_missing(file: str, feature: str, features: Mapping[str, Any]) -> str:
    hint = suggestions.did_you_mean(feature, features)
    return f"`{file}` has a record without the feature {feature!r}. {hint}".rstrip()


def _of_missing(file: str, features: Mapping[str, Any], said: Mapping[str, str]) -> str | None:
    if said["name"] in features:
        return None
    return _describe_missing(file, said["name"], features)


def _of_type(file: str, features: Mapping[str, Any], said: Mapping[str, str]) -> str | None:
    name, actual, wanted = said["name"], said["actual"], said["wanted"]
    if name not in features or _TYPES.get(features[name].WhichOneof("kind")) != actual:
        return None
    return f"`{file}` has a record whose feature {name!r} holds {actual}; {wanted} was asked for."


def _of_count(file: str, features: Mapping[str, Any], said: Mapping[str, str]) -> str | None:
    name, count = said["name"], int(said["count"])
    if name not in features or _count(features[name]) != count:
        return None
    values = "value" if count == 1 else "values"
    return (
        f"`{file}` has a record whose feature {name!r} has {count} {values}; the shape "
        f"{said['shape']} was asked for."
    )


def _count(feature: Any) -> int:
    kind = feature.WhichOneof("kind")
    return len(getattr(feature, kind).value) if kind else 0


# What TensorFlow says of a feature, and how to say so of a file that has such a record.
_COMPLAINTS: dict[re.Pattern[str], _Describe] = {
    re.compile(
        r"Feature: (?P<name>.+?) \(data type: \w+\) is required but could not be found"
    ): _of_missing,
    re.compile(
        r"Key: (?P<name>.+?)(?:, Index: \d+)?\.  Data types don't match\. "
        r"Data type: (?P<actual>\w+) but expected type: (?P<wanted>\w+)"
    ): _of_type,
    re.compile(
        r"Key: (?P<name>.+?)(?:, Index: \d+)?\.  Data types don't match\. "
        r"Expected type: (?P<wanted>\w+), Actual type: (?P<actual>\w+)"
    ): _of_type,
    re.compile(
        r"Key: (?P<name>.+?), Index: \d+\.  Number of \w+ values != expected\.  "
        r"Values size: (?P<count>\d+) but output shape: (?P<shape>\[[\d,]*\])"
    ): _of_count,
}
