"""Search for the damaged file, and the position of the damage, after reading has failed.

TensorFlow reports the byte offset of an unreadable record, but not the file. This module therefore
remembers the files when reading starts and reads them once more after a failure.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from absl import logging

from official_lite.common import errors

__all__ = ["describe", "find_damage", "remember", "remembered", "require_records"]

DatasetFn = Callable[..., tf.data.Dataset]

# Limit the search, so that a failed run reports its error soon.
_MOST_SECONDS = 60.0

_READ: dict[tuple[str, ...], tuple[DatasetFn, bool]] = {}


def remember(files: Sequence[str], dataset_fn: DatasetFn, is_training: bool = False) -> None:
    """Remember how files are read, and whether they are read for training."""
    # Insert the files again so that they are the newest entry.
    _READ.pop(tuple(files), None)
    _READ[tuple(files)] = (dataset_fn, is_training)


def remembered(is_training: bool | None = None) -> Iterator[tuple[str, DatasetFn]]:
    """Yield each remembered file and its `dataset_fn`, the most recently remembered files first.

    A process may have read other data before.

    Args:
        is_training: Which files to yield before all others: those read for training (True) or those
            that are not (False).
    """
    newest_first = list(reversed(_READ.items()))
    for files, (dataset_fn, _) in sorted(newest_first, key=lambda read: read[1][1] != is_training):
        for file in files:
            yield file, dataset_fn


def require_records(files: Sequence[str], dataset_fn: DatasetFn, pattern: object) -> None:
    """Read the first record of the files, because files without records would repeat forever.

    Args:
        files: The files.
        dataset_fn: Builds a dataset from one file.
        pattern: The pattern that matched the files, for the error message.

    Raises:
        DataError: There is no record, or the first one cannot be read.
    """
    if not tf.executing_eagerly():
        return
    for file in files:
        try:
            for _ in dataset_fn(file).take(1):
                return
        except tf.errors.OpError as error:
            raise errors.DataError(describe(file, error)) from error
    raise errors.DataError(
        f"0 examples matched {pattern!r}: there is not one record in all {len(files)} files, such "
        f"as {files[0]}."
    )


def find_damage() -> str | None:
    """Read the remembered files again, up to the first unreadable one, and describe the damage.

    Returns:
        A sentence that names the file and the damage. None if no damage was found within the time
        limit.
    """
    deadline = time.monotonic() + _MOST_SECONDS
    for file, dataset_fn in remembered():
        try:
            dataset_fn(file).reduce(tf.constant(0, tf.int64), lambda count, *_: count + 1)
        except tf.errors.OpError as error:
            return describe(file, error)
        if time.monotonic() > deadline:
            logging.warning("The search for the damaged file was given up at %s.", file)
            return None
    return None


def describe(file: str, error: tf.errors.OpError) -> str:
    """Describe a TensorFlow error about a file in one sentence that names the file."""
    match = re.search(r"(truncated|corrupted) record at (\d+)", error.message)
    if match is None:
        return f"`{file}` can't be read: {error.message.splitlines()[0]}"
    hint = " Is it a TFRecord file, and is its compression the right one?"
    return f"`{file}` has a {match[1]} record at byte {match[2]}.{hint if match[2] == '0' else ''}"
