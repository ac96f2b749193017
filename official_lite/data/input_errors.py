"""Translation of TensorFlow errors about input data into errors that users understand."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from official_lite.common import error_report, errors, suggestions
from official_lite.data import damaged_files, record_features

__all__ = ["naming_the_keys", "raise_if_of_data"]

# Names of the ops that fetch a batch, distributed or not.
_INPUT = re.compile("IteratorGetNext|MakeIterator")
_BAD_VALUES = (
    r"Received a label value of .+ which is outside the valid range of .+?\)",
    r"indices.* = .+ is not in \[0, .+?\)",
)
_PYTHON_ERROR = re.compile(r"^(\w*(?:Error|Exception|Interrupt|Exit)\w*: .*)$", re.MULTILINE)
_PYTHON_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


def raise_if_of_data(error: tf.errors.OpError, global_step: Any, split: str = "training") -> None:
    """Raise a `DataError` that a user can understand if bad data caused the error.

    If the data is not the cause, nothing is raised.

    Args:
        error: The error that the loop raised.
        global_step: The counter of training steps, or None.
        split: The data that was being read, such as `training`.

    Raises:
        DataError: The data caused the error.
    """
    reason = _reason(error, is_training=split == "training")
    if reason is None:
        return
    # The failed step may have been counted already, so the step number is approximate.
    where = "" if global_step is None else f" around step {int(global_step.numpy())}"
    raise errors.DataError(f"The {split} data can't be used{where}: {reason}") from error


@contextlib.contextmanager
def naming_the_keys(fn: Callable[..., Any], dataset: tf.data.Dataset) -> Iterator[None]:
    """Name the available keys if a function requests a missing key of its examples.

    Args:
        fn: The function, which is traced inside the context.
        dataset: The dataset of the examples that are passed to `fn`.

    Raises:
        KeyError: The examples have no such key.
    """
    try:
        yield
    except KeyError as error:
        asked, keys = _asked_key(error), _keys(dataset.element_spec)
        if not keys or asked in (None, *keys):
            raise
        name = getattr(fn, "__name__", type(fn).__name__)
        raise KeyError(
            f"{asked!r} is no key of the examples that `{name}` is given. "
            f"{suggestions.did_you_mean(str(asked), keys)}"
        ) from error


def _asked_key(error: BaseException) -> Any:
    # AutoGraph raises the error again with its text in place of the key.
    while hasattr(error, "ag_error_metadata") and isinstance(error.__context__, KeyError):
        error = error.__context__
    return error.args[0] if error.args else None


def _keys(spec: Any) -> list[str]:
    """Return the keys of an example that is a dictionary or a tuple that contains dictionaries."""
    parts = spec if isinstance(spec, tuple) else (spec,)
    return [key for part in parts if isinstance(part, Mapping) for key in part]


def _reason(error: tf.errors.OpError, *, is_training: bool) -> str | None:
    for pattern in _BAD_VALUES:
        if match := re.search(pattern, error.message):
            return f"a label or an index in a batch is out of range. {match[0]}."
    if record_features.is_complaint(error.message):
        found = record_features.find_culprit(error.message, is_training=is_training)
        return found or _said(error)
    # For an op that is executed eagerly, only `str(error)` contains its name.
    if not _INPUT.search(f"{error} {error.message}"):
        return None
    if isinstance(error, tf.errors.DataLossError | tf.errors.NotFoundError):
        return damaged_files.find_damage() or _said(error)
    if match := _PYTHON_ERROR.search(error.message):
        return f"{match[1]}{_place(error)}"
    return _said(error)


def _place(error: tf.errors.OpError) -> str:
    """Return the user's line of Python that failed: the innermost frame outside TensorFlow."""
    frames = [f for f in _PYTHON_FRAME.findall(error.message) if "/tensorflow/" not in f[0]]
    if not frames:
        return ""
    path, line, function = frames[-1]
    return f" ({path}, line {line}, in `{function}`)"


def _said(error: tf.errors.OpError) -> str:
    return error_report.first_line(error.message) or type(error).__name__
