"""What went wrong with the data, from what TensorFlow says when a step has failed."""

import re
from typing import Any

import tensorflow as tf

from official_lite.common import errors
from official_lite.data import damaged_files

__all__ = ["raise_if_of_data"]

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
    reason = _reason(error)
    if reason is None:
        return
    # The step that finds no data may have been counted already.
    where = "" if global_step is None else f" around step {int(global_step.numpy())}"
    raise errors.DataError(f"The {split} data can't be used{where}: {reason}") from error


def _reason(error: tf.errors.OpError) -> str | None:
    for pattern in _BAD_VALUES:
        if match := re.search(pattern, error.message):
            return f"a label or an index in a batch is out of range. {match[0]}."
    # Of an op that is run by itself only `str` has the name.
    if not _INPUT.search(f"{error} {error.message}"):
        return None
    if isinstance(error, tf.errors.DataLossError | tf.errors.NotFoundError):
        return damaged_files.find_damage() or _first_line(error)
    if match := _PYTHON_ERROR.search(error.message):
        return f"{match[1]}{_place(error)}"
    return _first_line(error)


def _place(error: tf.errors.OpError) -> str:
    """Where in the Python of a user: the innermost line that is not TensorFlow's."""
    frames = [f for f in _PYTHON_FRAME.findall(error.message) if "/tensorflow/" not in f[0]]
    if not frames:
        return ""
    path, line, function = frames[-1]
    return f" ({path}, line {line}, in `{function}`)"


def _first_line(error: tf.errors.OpError) -> str:
    """What TensorFlow says, without the nodes that it names around it."""
    text = re.sub(r"\{\{function_node .*?\}\} ?", "", error.message)
    text = re.sub(
        r"Graph execution error:\s*Detected at .*?\n(<stack.*?>\n)?", "", text, flags=re.S
    )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
