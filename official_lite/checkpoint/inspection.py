"""Inspection and comparison of the variables in checkpoints.

No model is built, so this works for the checkpoints of any model, and for damaged ones as far as
they can be read.
"""

import collections
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging

from official_lite.checkpoint import saved_graph
from official_lite.common import errors, files

__all__ = [
    "PENDING_EVALUATION",
    "STATES",
    "Contents",
    "Difference",
    "SavedVariable",
    "compare",
    "find_unequal_bits",
    "in_short",
    "read",
    "read_global_step_from_checkpoint",
    "remove_ckpts",
]

STATES = ("only in a", "only in b", "differs", "equal")

_VALUE = saved_graph.VALUE_SUFFIX
PENDING_EVALUATION = "evaluation_is_pending"
"""The name of the item that a stop during an evaluation adds to the checkpoint."""

# Keys that are ignored: those that TensorFlow itself adds, and `PENDING_EVALUATION`, which depends
# on when a run was stopped.
_NO_VARIABLES = (saved_graph.GRAPH_KEY, f"save_counter{_VALUE}", f"{PENDING_EVALUATION}{_VALUE}")
_UNREADABLE = (ValueError, IndexError, tf.errors.OpError)

_Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedVariable:
    """A variable in a checkpoint.

    Attributes:
        name: The name of the variable, such as `dense/kernel`; the key if no unique name was saved.
        key: The object path of the variable, without the suffix that TensorFlow adds to every key.
        shape: The shape.
        dtype: TensorFlow's name of the dtype.
        num_bytes: The size of the values in bytes.
        num_not_finite: The number of values that are NaN or infinite.
    """

    name: str
    key: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    num_not_finite: int = 0

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """The readable part of a checkpoint.

    Attributes:
        variables: The variables, in the order of the saved objects.
        problems: One line for each part that could not be read; empty if every tensor was read.
    """

    variables: Sequence[SavedVariable]
    problems: Sequence[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of one variable between two checkpoints, a and b.

    Attributes:
        name: The name of the variable in a, or in b if a does not have it.
        a: The variable in a; None if a does not have it.
        b: The variable in b; None if b does not have it.
        is_equal: Whether all values are equal; any two NaNs count as equal.
        max_abs: The largest absolute difference of two values; infinite if only one of the two is
            finite. None if the values cannot be subtracted.
        relative: `max_abs` divided by the largest finite absolute value in a.
    """

    name: str
    a: SavedVariable | None
    b: SavedVariable | None
    is_equal: bool = False
    max_abs: float | None = None
    relative: float | None = None

    @property
    def state(self) -> str:
        """The state of the variable, one of `STATES`."""
        if self.b is None:
            return "only in a"
        if self.a is None:
            return "only in b"
        return "equal" if self.is_equal else "differs"


def read(prefix: str) -> Contents:
    """Read every tensor of a checkpoint, which detects damage.

    Args:
        prefix: The path without the endings of its files.
    """
    try:
        opened = _Checkpoint(prefix)
    except _UNREADABLE as error:
        return Contents(variables=(), problems=[in_short(error)])
    variables, problems = [], [*opened.problems]
    for key, name in opened.names.items():
        try:
            variables.append(opened.read(key)[0])
        except _UNREADABLE as error:
            problems.append(f"{name} can't be read: {in_short(error)}")
    return Contents(variables=variables, problems=problems)


def compare(a: str, b: str) -> list[Difference]:
    """Compare the variables of two checkpoints.

    Variables are matched by key, or by name if only one of the checkpoints has the key. The results
    are sorted by state, with the largest differences first.

    Args:
        a: The path of the first checkpoint, without the endings of its files.
        b: The path of the second checkpoint, without the endings of its files.

    Raises:
        errors.CheckpointError: A checkpoint cannot be read.
    """
    try:
        one, other = _Checkpoint(a), _Checkpoint(b)
        found = [_difference(one, other, *keys) for keys in _pairs(one.names, other.names)]
    except _UNREADABLE as error:
        raise errors.CheckpointError(f"{a} and {b} can't be compared: {in_short(error)}") from error
    return sorted(found, key=_rank)


def find_unequal_bits(a: str, b: str) -> list[str]:
    """Return the names of the variables that only one checkpoint has, or whose bits differ.

    Unlike `compare`, this distinguishes NaNs and zeros with different bits.

    Raises:
        errors.CheckpointError: A checkpoint cannot be read.
    """
    try:
        one, other = _Checkpoint(a), _Checkpoint(b)
        return [
            one.names.get(key) or other.names[key]
            for key in sorted({*one.names, *other.names})
            if key not in one.names
            or key not in other.names
            or _bits(one.read(key)[1]) != _bits(other.read(key)[1])
        ]
    except _UNREADABLE as error:
        raise errors.CheckpointError(f"{a} and {b} can't be compared: {in_short(error)}") from error


def _bits(array: _Array) -> tuple[Any, ...]:
    # In an array of strings, the bytes are pointers, so use the strings themselves.
    content = array.tolist() if array.dtype.kind == "O" else array.tobytes()
    return str(array.dtype), array.shape, content


class _Checkpoint:
    """A checkpoint that is open for reading.

    Attributes:
        names: The names of the variables by key, in the order of the saved objects.
        problems: The reasons why the saved names could not be read; empty if they were read.
    """

    def __init__(self, prefix: str) -> None:
        self._reader = tf.train.load_checkpoint(prefix)
        self._shapes = self._reader.get_variable_to_shape_map()
        self._dtypes = self._reader.get_variable_to_dtype_map()
        self.problems: list[str] = []
        named = {key: name for key, name in self._own_names().items() if key in self._shapes}
        keys = dict.fromkeys([*named, *sorted(self._shapes)])
        counts = collections.Counter(named.values())
        self.names = {
            key: name
            if (name := named.get(key)) and counts[name] == 1
            else key.removesuffix(_VALUE)
            for key in keys
            if key not in _NO_VARIABLES
        }

    def read(self, key: str) -> tuple[SavedVariable, _Array]:
        array = np.asarray(self._reader.get_tensor(key))
        is_text = array.dtype.kind in "OSU"
        variable = SavedVariable(
            name=self.names[key],
            key=key.removesuffix(_VALUE),
            shape=tuple(self._shapes[key]),
            dtype=self._dtypes[key].name,
            num_bytes=sum(map(len, array.flat)) if is_text else array.nbytes,
            num_not_finite=0 if is_text else int(np.count_nonzero(~np.isfinite(array))),
        )
        return variable, array

    def _own_names(self) -> dict[str, str]:
        """Return the saved names of the variables by key; empty for a TensorFlow 1 checkpoint."""
        try:
            graph = saved_graph.read_graph(self._reader)
        except _UNREADABLE as error:
            self.problems.append(f"the object graph can't be read: {in_short(error)}")
            return {}
        return {
            attribute.checkpoint_key: attribute.full_name
            for node in graph.nodes
            for attribute in node.attributes
        }


def _pairs(
    one: Mapping[str, str], other: Mapping[str, str]
) -> Iterator[tuple[str | None, str | None]]:
    left = {name: key for key, name in one.items() if key not in other}
    right = {name: key for key, name in other.items() if key not in one}
    yield from ((key, key) for key in one if key in other)
    yield from ((key, right.get(name)) for name, key in left.items())
    yield from ((None, key) for name, key in right.items() if name not in left)


def _difference(
    one: _Checkpoint, other: _Checkpoint, key: str | None, other_key: str | None
) -> Difference:
    a, values = one.read(key) if key is not None else (None, None)
    b, other_values = other.read(other_key) if other_key is not None else (None, None)
    name = a.name if a is not None else b.name if b is not None else ""
    if a is None or b is None or values is None or other_values is None:
        return Difference(name=name, a=a, b=b)
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return Difference(name=name, a=a, b=b)
    if a.dtype in ("string", "bool"):
        return Difference(name=name, a=a, b=b, is_equal=bool(np.all(values == other_values)))
    max_abs, largest = _max_abs(values, other_values), _largest(values)
    relative = max_abs / largest if largest else math.inf
    return Difference(
        name=name,
        a=a,
        b=b,
        is_equal=max_abs == 0,
        max_abs=max_abs,
        relative=relative if max_abs else 0.0,
    )


def _max_abs(one: _Array, other: _Array) -> float:
    if one.dtype.kind in "iu":
        one, other = one.astype(np.float64), other.astype(np.float64)
    # Compare values directly, because the difference of two equal infinities is NaN.
    is_same = (one == other) | (np.isnan(one) & np.isnan(other))
    if bool(np.all(is_same)):
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        worst = float(np.max(np.abs(one[~is_same] - other[~is_same])))
    return math.inf if math.isnan(worst) else worst


def _largest(array: _Array) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(np.max(finite)) if finite.size else 0.0


def _rank(difference: Difference) -> tuple[int, float, str]:
    size = math.inf if difference.relative is None else difference.relative
    return STATES.index(difference.state), -size, difference.name


def in_short(error: Exception) -> str:
    """Return the first line of an error, at most 300 characters, without a period at its end."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300].rstrip(".")


_STEP_KEY = f"global_step{_VALUE}"


def read_global_step_from_checkpoint(ckpt_file_path: str) -> int:
    """Return the global step at which a checkpoint was saved.

    Raises:
        errors.CheckpointError: The checkpoint does not contain a global step.
    """
    reader = tf.train.load_checkpoint(ckpt_file_path)
    if not reader.has_tensor(_STEP_KEY):
        raise errors.CheckpointError(
            f"{ckpt_file_path} contains no `global_step`. Save it with the model, as "
            "`tf.train.Checkpoint(model=…, global_step=…)`."
        )
    return int(reader.get_tensor(_STEP_KEY))


def remove_ckpts(model_dir: str) -> None:
    """Remove all `ckpt-*` files and the file `checkpoint` from a directory."""
    pattern = os.path.join(model_dir, "ckpt-*")
    logging.info("Removing checkpoint files %s.", pattern)
    for path in [*tf.io.gfile.glob(pattern), os.path.join(model_dir, "checkpoint")]:
        if tf.io.gfile.exists(path):
            files.remove_all(path)
