"""What is in a checkpoint, and in what two of them differ: its variables.

Nothing is built for it, so it reads the checkpoints of any model, and damaged ones as far as that
goes.
"""

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from official_lite.common import errors

__all__ = ["STATES", "Contents", "Difference", "SavedVariable", "compare", "read"]

STATES = ("only in a", "only in b", "differs", "equal")

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# TensorFlow's own.
_NO_VARIABLES = (_GRAPH, f"save_counter{_VALUE}")
_UNREADABLE = (ValueError, IndexError, tf.errors.OpError)

_Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedVariable:
    """A variable in a checkpoint.

    Attributes:
        name: What it called itself, such as `dense/kernel`; the key if that says nothing.
        key: The path of objects to it, without what TensorFlow adds to all of them.
        shape: Its shape.
        dtype: TensorFlow's name of its type.
        num_bytes: What its values take.
        num_not_finite: How many of them are NaN or infinite.
    """

    name: str
    key: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    num_not_finite: int = 0

    @property
    def size(self) -> int:
        """How many values it has."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """All that could be read of a checkpoint.

    Attributes:
        variables: In the order of the saved objects.
        problems: What could not be read, a line each; none if every tensor was.
    """

    variables: Sequence[SavedVariable]
    problems: Sequence[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """A variable in two checkpoints.

    Attributes:
        name: Its name in the first that has it.
        a: What it is in the first; None if it is not there.
        b: What it is in the second.
        is_equal: Whether every value is the same, bit for bit but for kinds of NaN.
        max_abs: The largest difference of two values; infinite if one is finite and one is not.
            None where nothing can be subtracted.
        relative: That, by the largest value of the first.
    """

    name: str
    a: SavedVariable | None
    b: SavedVariable | None
    is_equal: bool = False
    max_abs: float | None = None
    relative: float | None = None

    @property
    def state(self) -> str:
        """One of `STATES`."""
        if self.b is None:
            return "only in a"
        if self.a is None:
            return "only in b"
        return "equal" if self.is_equal else "differs"


def read(prefix: str) -> Contents:
    """Reads every tensor of a checkpoint, which finds what is damaged.

    Args:
        prefix: Its path without the endings of its files.
    """
    try:
        opened = _Checkpoint(prefix)
    except _UNREADABLE as error:
        return Contents(variables=(), problems=[_in_short(error)])
    variables, problems = [], [*opened.problems]
    for key, name in opened.names.items():
        try:
            variables.append(opened.read(key)[0])
        except _UNREADABLE as error:
            problems.append(f"{name} can't be read: {_in_short(error)}")
    return Contents(variables=variables, problems=problems)


def compare(a: str, b: str) -> list[Difference]:
    """The variables of two checkpoints, by their states, and those that differ most first.

    Those with the same key belong together, then those with the same name.

    Args:
        a: The path of one without the endings of its files.
        b: That of the other.

    Raises:
        errors.CheckpointError: One of them can't be read.
    """
    try:
        one, other = _Checkpoint(a), _Checkpoint(b)
        found = [_difference(one, other, *keys) for keys in _pairs(one.names, other.names)]
    except _UNREADABLE as error:
        raise errors.CheckpointError(
            f"{a} and {b} can't be compared: {_in_short(error)}"
        ) from error
    return sorted(found, key=_rank)


class _Checkpoint:
    """A checkpoint, opened.

    Attributes:
        names: The names of the variables by their keys, in the order of the saved objects.
        problems: Why there are no names but the keys.
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
        """What the variables called themselves, by their keys; TensorFlow 1 has not kept that."""
        if _GRAPH not in self._shapes:
            return {}
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        try:
            graph.ParseFromString(self._reader.get_tensor(_GRAPH))
        except _UNREADABLE as error:
            self.problems.append(f"the graph of objects can't be read: {_in_short(error)}")
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
    # Also of two infinities, whose difference would be NaN.
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


def _in_short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]
