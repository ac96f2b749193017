"""What hooks remember, as a part of a checkpoint."""

from __future__ import annotations

import collections
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib import parse

import numpy as np
import tensorflow as tf
from absl import logging

from official_lite.common import errors
from official_lite.orbit.hooks.hook import Hook

_JSON = "json"


class HookStates(tf.train.experimental.PythonState):
    """Saves `state_dict` of each hook under its `name`, and puts it back.

    Without a `name` it is that of the class, and `Class_1` for the second of that class: adding or
    removing hooks of other classes does not matter. Among several of one class only a `name` makes
    sure that each gets its own state back.

    Args:
      hooks: The hooks.

    Raises:
      errors.ConfigValueError: Two hooks have one name.
    """

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self._hooks: dict[str, Hook] = {}
        count: collections.Counter[str] = collections.Counter()
        for hook in hooks:
            name = hook.name or _numbered(type(hook).__name__, count)
            if name in self._hooks:
                raise errors.ConfigValueError(
                    f"Two hooks are called `{name}` in the checkpoint; give each its own `name`."
                )
            self._hooks[name] = hook

    def serialize(self) -> bytes:
        states = {name: hook.state_dict() for name, hook in self._hooks.items()}
        return pack({name: state for name, state in states.items() if state})

    def deserialize(self, string_value: bytes) -> None:
        for name, state in unpack(string_value).items():
            if name in self._hooks:
                self._hooks[name].load_state_dict(state)
            else:
                logging.warning(
                    "The checkpoint holds the state of a hook %s, which this run does not have.",
                    name,
                )


def pack(states: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The states as the bytes of an `.npz` file: arrays as arrays, the rest as JSON.

    Raises:
      errors.ConfigTypeError: A value is neither.
    """
    arrays: dict[str, Any] = {}
    others: dict[str, dict[str, Any]] = {}
    for name, state in states.items():
        others[name] = {}
        for key, value in state.items():
            # An array of objects would be a pickle, which is not loaded.
            if isinstance(value, np.ndarray) and not value.dtype.hasobject:
                arrays[f"{parse.quote(name, safe='')}/{key}"] = value
            else:
                others[name][key] = value
    try:
        arrays[_JSON] = np.array(json.dumps(others, default=_as_python))
    except (TypeError, ValueError) as error:
        raise errors.ConfigTypeError(
            "A hook's `state_dict` may hold NumPy arrays and numbers, and what JSON can express: "
            f"{error}."
        ) from error
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def unpack(packed: bytes) -> dict[str, dict[str, Any]]:
    """What `pack` was given."""
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        states: dict[str, dict[str, Any]] = json.loads(str(arrays[_JSON]))
        for path in arrays.files:
            if path != _JSON:
                name, _, key = path.partition("/")
                states[parse.unquote(name)][key] = arrays[path]
    return states


def _numbered(name: str, count: collections.Counter[str]) -> str:
    count[name] += 1
    return name if count[name] == 1 else f"{name}_{count[name] - 1}"


def _as_python(value: Any) -> Any:
    # What Python has no type for, such as a longdouble, is its own item.
    if isinstance(value, np.generic) and not isinstance(item := value.item(), np.generic):
        return item
    kind = f" of type {value.dtype}" if isinstance(value, np.ndarray) else ""
    raise TypeError(f"got a {type(value).__name__}{kind}")
