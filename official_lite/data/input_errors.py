"""Clear errors about input data: damaged files, bad values, and keys that examples do not have."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import error_report, errors, nests, suggestions

__all__ = [
    "describe",
    "find_damage",
    "find_non_finite",
    "forget",
    "remember",
    "remember_folder",
    "remember_service",
    "require_records",
    "naming_the_keys",
    "raise_if_of_data",
]


_T = TypeVar("_T")

DatasetFn = Callable[..., tf.data.Dataset]

# The maximum duration of the search for a damaged file, in seconds, so that a failed run reports
# its error without a long delay.
_MAX_SECONDS = 60.0

_MAX_SECONDS_OF_NUMBERS = 5.0

# Inputs or labels above this value usually lead to losses and gradients too large to train with.
_LARGE_NUMBER = 1e3

# The directories passed to `remember_folder`, in the order in which they were first passed.
_FOLDERS: dict[str, None] = {}

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".jxl")

_READ: dict[tuple[str, ...], DatasetFn] = {}

# The addresses of the tf.data services that provide the data.
_SERVICES: set[str] = set()


def remember(files: Sequence[str], dataset_fn: DatasetFn) -> None:
    """Remember how files are read."""
    # Remove any earlier entry for these files, so that the new entry comes last.
    _READ.pop(tuple(files), None)
    _READ[tuple(files)] = dataset_fn


def remember_folder(path: object) -> None:
    """Remember a local directory that data are read from, in which images may be damaged."""
    if isinstance(path, str) and os.path.isdir(path):
        _FOLDERS[path] = None


def remember_service(address: str) -> None:
    """Remember a tf.data service that data are read from."""
    _SERVICES.add(address)


def forget() -> None:
    """Forget all remembered files, directories and services at the end of a run."""
    for known in (_READ, _FOLDERS, _SERVICES):
        known.clear()


def find_non_finite(batches: Iterable[nests.Nest]) -> str | None:
    """Read batches up to the first one with an infinity or NaN, for a few seconds at most.

    Returns:
        A sentence that names the batch and the part of it, or the part with the largest number if
        that is very large. None if all batches that were read are finite and small.
    """
    deadline = time.monotonic() + _MAX_SECONDS_OF_NUMBERS
    largest, where = _LARGE_NUMBER, ""
    for number, batch in enumerate(batches):
        for path, part in keras.tree.flatten_with_path(batch):
            tensors = [x for x in tf.nest.flatten(part, expand_composites=True) if tf.is_tensor(x)]
            place = "".join(f"[{key!r}]" for key in path)
            for tensor in (x for x in tensors if x.dtype.is_floating and tf.size(x) > 0):
                if not bool(tf.reduce_all(tf.math.is_finite(tensor))):
                    return (
                        f"Batch {number} of the training data (counted from 0) contains NaN or "
                        f"infinity in `batch{place}`."
                    )
                if (size := float(tf.reduce_max(tf.abs(tensor)))) > largest:
                    largest, where = size, place
        if time.monotonic() > deadline:
            break
    if where:
        return (
            f"The training data contain absolute values up to {largest:g} in `batch{where}`. Scale "
            "the data."
        )
    return None


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
        f"0 examples matched {pattern!r}: every matching file ({len(files)} in all) is empty, for "
        f"example {files[0]}. Set `input_path` to files with examples."
    )


def find_damage() -> str | None:
    """Read the remembered files again, up to the first unreadable one, and describe the damage.

    The files that were remembered last are read first, because a process may have read other data
    before.

    Returns:
        A sentence that names the file and the damage. None if no damage was found within the time
        limit.
    """
    known = ((file, dataset_fn) for files, dataset_fn in reversed(_READ.items()) for file in files)
    failed = _find_failure(known, lambda one: one[1](one[0]).reduce(0, lambda n, *_: n + 1))
    return describe(failed[0][0], failed[1]) if failed else None


def _find_damaged_image() -> str | None:
    images = (
        os.path.join(directory, name)
        for folder in reversed(_FOLDERS)
        for directory, _, names in os.walk(folder)
        for name in sorted(names)
        if name.lower().endswith(_IMAGES)
    )
    failed = _find_failure(images, lambda path: tf.io.decode_image(tf.io.read_file(path)))
    if failed is None:
        return None
    size = os.path.getsize(failed[0])
    return f"the image `{failed[0]}` is damaged ({size} bytes). Replace or remove it."


def _find_failure(
    files: Iterable[_T], read: Callable[[_T], Any]
) -> tuple[_T, tf.errors.OpError] | None:
    """Return the first file that can't be read and its error; None if none is found in time."""
    deadline = time.monotonic() + _MAX_SECONDS
    for file in files:
        try:
            read(file)
        except tf.errors.OpError as error:
            return file, error
        if time.monotonic() > deadline:
            logging.warning("Stopped searching for a damaged file after %g s.", _MAX_SECONDS)
            return None
    return None


def describe(file: str, error: tf.errors.OpError) -> str:
    """Describe a TensorFlow error about a file in one sentence that names the file."""
    hint = ""
    if isinstance(error, tf.errors.DataLossError):
        hint = " Check that the file is complete and has the expected compression."
    if "record at 0" in str(error):
        hint += " If its format is not TFRecord but, for example, CSV, set `source`."
    return f"`{file}` can't be read: {_said(error).rstrip('.')}.{hint}"


# Matches the names of the ops that fetch a batch, with or without tf.distribute.
_INPUT = re.compile("IteratorGetNext|MakeIterator")

# Matches the names of ops that raise `InvalidArgumentError` if a label or an index is out of range.
_INDEXING = re.compile(r"SparseSoftmaxCrossEntropyWithLogits|\bGatherV2\b|\bResourceGather\b")


def raise_if_of_data(
    error: tf.errors.OpError,
    global_step: tf.Variable | None,
    split: str = "training",
) -> None:
    """Raise a `DataError` that a user can understand if bad data caused the error.

    If the data is not the cause, nothing is raised.

    Args:
        error: The error that the loop raised.
        global_step: The counter of training steps, or None.
        split: The data that was being read, such as `training`.

    Raises:
        DataError: The data caused the error.
        ClusterError: The dispatcher of a tf.data service no longer knows this process.
    """
    reason = _reason(error)
    if reason is None:
        return
    # A `NotFoundError` without a damaged or missing file means that the dispatcher of the tf.data
    # service has lost its state.
    if _SERVICES and isinstance(error, tf.errors.NotFoundError) and reason == _said(error):
        raise errors.ClusterError(
            f"The tf.data service has lost the state of this run: {reason.rstrip('.')}. Run the "
            "same command again to resume. Start the dispatcher with `--work_dir`, so that its "
            "restarts do not interrupt runs."
        ) from error
    # The failed step may have been counted already, so the step number is approximate.
    where = "" if global_step is None else f" around step {int(global_step.numpy())}"
    raise errors.DataError(f"The {split} data can't be used{where}: {reason}") from error


@contextlib.contextmanager
def naming_the_keys(fn: Callable[..., Any], examples: nests.Nest) -> Iterator[None]:
    """Name the available keys if a function requests a missing key of its examples.

    Args:
        fn: The function, which is traced inside the context.
        examples: The examples that are passed to `fn`, or their specs.

    Raises:
        KeyError: The examples have no such key.
    """
    try:
        yield
    except KeyError as error:
        asked, keys = _asked_key(error), _keys(examples)
        if not keys or asked in (None, *keys):
            raise
        name = getattr(fn, "__qualname__", type(fn).__qualname__).rpartition("<locals>.")[2]
        raise KeyError(
            f"The examples passed to `{name}` have no key {asked!r}. "
            f"{suggestions.did_you_mean(str(asked), keys)}"
        ) from error


def _asked_key(error: BaseException) -> Any:
    # AutoGraph and Keras reraise the error with a message in place of the key, so get the key from
    # the original error.
    while isinstance(error.__context__, KeyError):
        error = error.__context__
    return error.args[0] if error.args else None


def _keys(spec: nests.Nest) -> list[str]:
    """Return the keys of examples that are dictionaries or tuples with dictionaries."""
    parts = spec if isinstance(spec, tuple) else (spec,)
    return [key for part in parts if isinstance(part, Mapping) for key in part]


def _reason(error: tf.errors.OpError) -> str | None:
    # If the failed op was executed eagerly, only `str(error)` contains the name of the op.
    text = f"{error} {error.message}"
    place = error_report.place_in_text(error)
    if isinstance(error, tf.errors.UnimplementedError) and "Cast string to" in text:
        return (
            f"a feature or label is text, but a number is needed. {_said(error)}{place}. Convert "
            "it in `build_inputs`, for example with `keras.layers.StringLookup`."
        )
    if isinstance(error, tf.errors.InvalidArgumentError) and _INDEXING.search(text):
        return (
            f"a label or an index in a batch is out of range. {_said(error).rstrip('.')}. Correct "
            "the labels, or set the number of units of the last layer to the number of classes "
            "(for an embedding, set `input_dim` to the number of indices)."
        )
    if not _INPUT.search(text):
        return None
    if isinstance(error, tf.errors.DataLossError | tf.errors.NotFoundError):
        return find_damage() or _said(error)
    if re.search("Cannot (batch tensors with different shapes|add tensor to the batch)", text):
        return (
            f"{_said(error).rstrip('.')}. Use `padded_batch`, or give all examples the same shape."
        )
    if place:
        return f"{_said(error)}{place}"
    if _FOLDERS and isinstance(error, tf.errors.InvalidArgumentError):
        return _find_damaged_image() or _said(error)
    return _said(error)


def _said(error: tf.errors.OpError) -> str:
    return error_report.first_line(error.message) or type(error).__name__
