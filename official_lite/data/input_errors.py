"""What went wrong with the data, from what TensorFlow says when a step has failed."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from official_lite.common import error_report, errors, suggestions
from official_lite.data import damaged_files, record_features

__all__ = ["naming_the_keys", "raise_if_of_data"]

# How the ops are called that draw a batch, distributed or not.
_INPUT = re.compile("IteratorGetNext|MakeIterator")
_BAD_VALUES = (
    r"Received a label value of .+ which is outside the valid range of .+?\)",
    r"indices.* = .+ is not in \[0, .+?\)",
)
_PYTHON_ERROR = re.compile(r"^(\w*(?:Error|Exception|Interrupt|Exit)\w*: .*)$", re.MULTILINE)
_PYTHON_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


def raise_if_of_data(error: tf.errors.OpError, global_step: Any, split: str = "training") -> None:
    """Raises what a user can understand, if the data are to blame for the error of a loop.

    Args:
        error: The error.
        global_step: What counts the steps of training, if anything does.
        split: Which data were read.

    Raises:
        DataError: They are. Otherwise nothing is raised.
    """
    reason = _reason(error, is_training=split == "training")
    if reason is None:
        return
    # The step that finds no data may have been counted already.
    where = "" if global_step is None else f" around step {int(global_step.numpy())}"
    raise errors.DataError(f"The {split} data can't be used{where}: {reason}") from error


@contextlib.contextmanager
def naming_the_keys(fn: Callable[..., Any], dataset: tf.data.Dataset) -> Iterator[None]:
    """Says which keys there are, if a function asks its examples for one that there is not.

    Args:
        fn: The function, which is traced inside.
        dataset: The examples that it is given.

    Raises:
        KeyError: There is no such key.
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
    # AutoGraph tells an error again, with its text in the place of the key.
    while hasattr(error, "ag_error_metadata") and isinstance(error.__context__, KeyError):
        error = error.__context__
    return error.args[0] if error.args else None


def _keys(spec: Any) -> list[str]:
    """Of an example that is a dictionary, or a tuple in which there are some."""
    parts = spec if isinstance(spec, tuple) else (spec,)
    return [key for part in parts if isinstance(part, Mapping) for key in part]


def _reason(error: tf.errors.OpError, *, is_training: bool) -> str | None:
    for pattern in _BAD_VALUES:
        if match := re.search(pattern, error.message):
            return f"a label or an index in a batch is out of range. {match[0]}."
    if record_features.is_complaint(error.message):
        found = record_features.find_culprit(error.message, is_training=is_training)
        return found or _said(error)
    # Of an op that is run by itself only `str` has the name.
    if not _INPUT.search(f"{error} {error.message}"):
        return None
    if isinstance(error, tf.errors.DataLossError | tf.errors.NotFoundError):
        return damaged_files.find_damage() or _said(error)
    if match := _PYTHON_ERROR.search(error.message):
        return f"{match[1]}{_place(error)}"
    return _said(error)


def _place(error: tf.errors.OpError) -> str:
    """Where in the Python of a user: the innermost line that is not TensorFlow's."""
    frames = [f for f in _PYTHON_FRAME.findall(error.message) if "/tensorflow/" not in f[0]]
    if not frames:
        return ""
    path, line, function = frames[-1]
    return f" ({path}, line {line}, in `{function}`)"


def _said(error: tf.errors.OpError) -> str:
    return error_report.first_line(error.message) or type(error).__name__
