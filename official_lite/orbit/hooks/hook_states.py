"""What hooks remember, as a part of a checkpoint."""

from __future__ import annotations

import collections
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official_lite.common import errors
from official_lite.orbit.hooks.hook import Hook

_JSON = "json"


class HookStates(tf.train.experimental.PythonState):
    """Saves `state_dict` of each hook under the name of its class, and puts it back.

    A second hook of a class is `Name_1`, so adding or removing others does not matter.

    Args:
      hooks: The hooks.
    """

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self._hooks: dict[str, Hook] = {}
        count: collections.Counter[str] = collections.Counter()
        for hook in hooks:
            name = type(hook).__name__
            self._hooks[f"{name}_{count[name]}" if count[name] else name] = hook
            count[name] += 1

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
            if isinstance(value, np.ndarray):
                arrays[f"{name}/{key}"] = value
            else:
                others[name][key] = value
    try:
        arrays[_JSON] = np.array(json.dumps(others))
    except TypeError as error:
        raise errors.ConfigTypeError(
            f"A hook's `state_dict` may hold NumPy arrays and what JSON can express: {error}."
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
                states[name][key] = arrays[path]
    return states
