"""Error messages about features that records lack, or hold with another type or length.

TensorFlow reports the feature that is missing or has an unexpected type or length, but not the file
that holds the record.
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

# Maps a file, the features of a record and the details of TensorFlow's message to a sentence, or to
# None if the message is not about this record.
_Describe = Callable[[str, Mapping[str, Any], Mapping[str, str]], str | None]

# Dtype names, by the fields of a `tf.train.Feature`.
_TYPES = {"int64_list": "int64", "float_list": "float", "bytes_list": "string"}

# Limit the search, so that a failed run reports its error soon.
_MOST_SECONDS_OF_SEARCH = 20.0


def require(
    files: Sequence[str],
    dataset_fn: damaged_files.DatasetFn,
    pattern: object,
    decoder_fn: Callable[..., Any] | None,
) -> None:
    """Check the first record for the features that the decoder requires, before a model is built.

    Args:
        files: The files.
        dataset_fn: Builds a dataset from one file.
        pattern: The pattern that matched the files, for the error message.
        decoder_fn: Decodes the records. Required features are known only for the method of a
            `FeatureDecoder`.

    Raises:
        DataError: There is no record, it cannot be read, or it lacks a feature.
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
    """Return whether a TensorFlow message reports a missing or unexpected feature."""
    return _complaint(text) is not None


def find_culprit(text: str, *, is_training: bool) -> str | None:
    """Search the files that were read for the first record that a TensorFlow message is about.

    Args:
        text: The message of the TensorFlow error.
        is_training: Whether the error occurred in training. If so, files read for training are
            searched first; otherwise last.

    Returns:
        A sentence that names the file and the problem. None if no such record was found within the
        time limit.
    """
    complaint = _complaint(text)
    if complaint is None:
        return None
    describe, said = complaint
    deadline = time.monotonic() + _MOST_SECONDS_OF_SEARCH
    for file, dataset_fn in damaged_files.remembered(is_training):
        for record in dataset_fn(file):
            features = _features(record)
            if features is not None and (found := describe(file, features, said)):
                return found
            if time.monotonic() > deadline:
                return None
    return None


def _complaint(text: str) -> tuple[_Describe, Mapping[str, str]] | None:
    """Return the function that describes a TensorFlow message about a feature, and its details."""
    for pattern, describe in _COMPLAINTS.items():
        if match := pattern.search(text):
            return describe, match.groupdict()
    return None


def _features(record: Any) -> Mapping[str, Any] | None:
    """Return the features of a serialized `tf.train.Example` by name; None for other records."""
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


# Patterns of TensorFlow's messages about features, and the functions that describe them for a file
# that holds such a record.
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
