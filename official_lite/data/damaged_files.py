"""Which of the files that were read is damaged, and where.

TensorFlow says at which byte a record can't be read, and not of which file. So the files are
remembered when reading begins, and read once more when it has failed.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from absl import logging

from official_lite.common import errors

__all__ = ["describe", "find_damage", "remember", "remembered", "require_records"]

DatasetFn = Callable[..., tf.data.Dataset]

# Nobody should wait for hours to hear why a run has failed.
_MOST_SECONDS = 60.0

_READ: dict[tuple[str, ...], tuple[DatasetFn, bool]] = {}


def remember(files: Sequence[str], dataset_fn: DatasetFn, is_training: bool = False) -> None:
    """Keeps in mind how files are read, and whether for training."""
    # Behind all others, as the newest.
    _READ.pop(tuple(files), None)
    _READ[tuple(files)] = (dataset_fn, is_training)


def remembered(is_training: bool | None = None) -> Iterator[tuple[str, DatasetFn]]:
    """Each file and how it is read, the newest first: a process may have read other data before.

    Args:
        is_training: Which come before all others, those for training or those that are not.
    """
    newest_first = list(reversed(_READ.items()))
    for files, (dataset_fn, _) in sorted(newest_first, key=lambda read: read[1][1] != is_training):
        for file in files:
            yield file, dataset_fn


def require_records(files: Sequence[str], dataset_fn: DatasetFn, pattern: object) -> None:
    """Reads the first record there is; files without any would be repeated for ever.

    Args:
        files: The files.
        dataset_fn: Makes a dataset of one.
        pattern: What they were found by, for the message.

    Raises:
        DataError: There is none, or it can't be read.
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
    """Reads the files again, up to the first that can't be read; says which and where it is.

    Returns:
        A sentence; None if every file that was looked at is sound.
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
    """What TensorFlow says of a file, in one sentence that names it."""
    match = re.search(r"(truncated|corrupted) record at (\d+)", error.message)
    if match is None:
        return f"`{file}` can't be read: {error.message.splitlines()[0]}"
    hint = " Is it a TFRecord file, and is its compression the right one?"
    return f"`{file}` has a {match[1]} record at byte {match[2]}.{hint if match[2] == '0' else ''}"
