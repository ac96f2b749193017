"""The list of a controller's hooks, and their states in checkpoints."""

from __future__ import annotations

import collections
import functools
import inspect
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib import parse

import numpy as np
import tensorflow as tf
from absl import logging

from official_lite.common import errors
from official_lite.orbit import runner, triggers
from official_lite.orbit.hooks.hook import GraphHook, Hook, RunningController

_JSON = "json"


class HookStates(tf.train.experimental.PythonState):
    """Saves the `state_dict` of each hook under a name and restores it.

    The name is the hook's `name`. Its default is the class name, or `Class_1` for the second hook
    of that class, so adding or removing hooks of other classes does not change it. If there are
    several hooks of one class, set `name` to make sure that each hook gets its own state back.

    Args:
      hooks: The hooks.

    Raises:
      errors.ConfigValueError: Two hooks have the same name.
    """

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self._hooks = by_name(hooks)

    def serialize(self) -> bytes:
        states = {name: hook.state_dict() for name, hook in self._hooks.items()}
        return pack({name: state for name, state in states.items() if state})

    def deserialize(self, string_value: bytes) -> None:
        for name, state in unpack(string_value).items():
            if name in self._hooks:
                self._hooks[name].load_state_dict(state)
            else:
                logging.warning(
                    "The checkpoint contains the state of the hook %s, which this run does not "
                    "have.",
                    name,
                )


def by_name(hooks: Iterable[Hook]) -> dict[str, Hook]:
    """Return hooks by the names under which they are saved; see `HookStates`.

    Raises:
      errors.ConfigValueError: Two hooks have the same name.
    """
    named: dict[str, Hook] = {}
    count: collections.Counter[str] = collections.Counter()
    for hook in hooks:
        name = hook.name or _numbered(type(hook).__name__, count)
        if name in named:
            raise errors.ConfigValueError(
                f"Two hooks are saved under the name `{name}`. Set a unique `name` for each."
            )
        named[name] = hook
    return named


def pack(states: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Serialize states to the bytes of an `.npz` file: arrays as arrays, other values as JSON.

    Raises:
      errors.ConfigTypeError: A value is neither an array nor expressible in JSON.
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
            "The `state_dict` of a hook may contain only NumPy arrays, numbers and JSON values: "
            f"{error}."
        ) from error
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def unpack(packed: bytes) -> dict[str, dict[str, Any]]:
    """Return the states that `pack` serialized."""
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


def _as_python(value: object) -> Any:
    # What Python has no type for, such as a longdouble, is its own item.
    if isinstance(value, np.generic) and not isinstance(item := value.item(), np.generic):
        return item
    kind = f" of type {value.dtype}" if isinstance(value, np.ndarray) else ""
    raise TypeError(f"got a {type(value).__name__}{kind}")


# The methods of a hook, and what each of them is called with.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "before_train": (),
    "before_step": (),
    "after_step": (),
    "after_epoch": (),
    "after_eval": ("logs",),
    "on_checkpoint": ("path",),
    "on_exception": ("error",),
    "after_train": ("success",),
    "state_dict": (),
    "load_state_dict": ("state",),
    "call": ("logs",),
    "on_gradients": ("grads_and_vars",),
}

# These may leave out their argument: hooks of LiBai and detectron2 have `after_train(self)`.
_EVENTS = ("after_eval", "on_checkpoint", "on_exception", "after_train")


class HookList:
    """The hooks of a controller and their schedule.

    Args:
      hooks: The hooks, in the order in which they run.
      steps_per_epoch: The number of steps after which `after_epoch` runs.

    Raises:
      errors.ConfigTypeError: An element is not a `Hook`, or one of its methods takes different
        arguments from the method of `Hook`.
    """

    def __init__(self, hooks: Iterable[Hook], steps_per_epoch: int | None = None) -> None:
        self._hooks = tuple(hooks)
        for hook in self._hooks:
            if not isinstance(hook, Hook):
                raise errors.ConfigTypeError(
                    f"`hooks` contains a {type(hook).__name__}, which is not a subclass of "
                    "`orbit.Hook`."
                )
            _check_methods(hook)
        hears_epochs = any(_overrides(hook, "after_epoch") for hook in self._hooks)
        self._epoch = triggers.every(steps_per_epoch if hears_epochs else None)

    def next_step(self, step: int) -> float:
        """Return the first step after `step` at which a hook is due."""
        return triggers.AnyOf([*self._triggers, self._epoch]).next_step(step)

    def before_steps(self, until: int) -> None:
        """Call `before_step` of the hooks that are due at `until`."""
        _tell(self._due(until), "before_step")

    def after_steps(self, step: int) -> None:
        """Call `after_step` of the hooks that are due at `step`."""
        _tell(self._due(step), "after_step")

    def after_epoch(self, step: int) -> None:
        """Call `after_epoch` of all hooks if an epoch ends at `step`."""
        if self._epoch.is_due(step):
            _tell(self._hooks, "after_epoch")

    def dispatch(self, event: str, *args: Any) -> None:
        """Call the method named `event` of every hook."""
        _tell(self._hooks, event, *args)

    def save_in(self, checkpoint: tf.train.Checkpoint) -> None:
        """Add the states of the hooks to a checkpoint, if any hook has a state."""
        if any(_overrides(hook, "state_dict") for hook in self._hooks):
            checkpoint.hooks = HookStates(self._hooks)

    def attach(self, controller: RunningController, trainer: runner.AbstractTrainer | None) -> None:
        """Set the controller and trainer of all hooks, and pass graph hooks to the trainer.

        Raises:
          errors.ConfigTypeError: There are graph hooks, but the trainer does not support them.
        """
        for hook in self._hooks:
            hook.controller, hook.trainer = controller, trainer
        if trainer is not None:
            trainer.set_graph_hooks([h for h in self._hooks if isinstance(h, GraphHook)])

    @functools.cached_property
    def _triggers(self) -> list[triggers.Trigger]:
        # Not before the hooks are attached: a trigger may depend on the controller.
        return [_step_trigger(hook) for hook in self._hooks]

    def _due(self, step: int) -> list[Hook]:
        pairs = zip(self._hooks, self._triggers, strict=True)
        return [hook for hook, trigger in pairs if trigger.is_due(step)]


def _tell(hooks: Iterable[Hook], event: str, *args: Any) -> None:
    first_error = None
    for hook in hooks:
        try:
            method = getattr(hook, event)
            method(*args) if not args or _takes(method, len(args)) else method()
        except BaseException as error:  # Of any kind: the other hooks have their turn all the same.
            if first_error is None:
                first_error = error
            else:
                logging.exception(
                    "%s.%s failed as well, after the first error.", type(hook).__name__, event
                )
    if first_error is not None:
        raise first_error


def _check_methods(hook: Hook) -> None:
    for name, arguments in _ARGUMENTS.items():
        method = getattr(hook, name, None)
        if method is None or _takes(method, len(arguments)):
            continue
        if name in _EVENTS and _takes(method, 0):
            continue
        wanted = f"{name}({', '.join(('self', *arguments))})"
        raise errors.ConfigTypeError(
            f"{type(hook).__name__}.{name} takes {inspect.signature(method)}; expected `{wanted}`."
        )


def _takes(method: Callable[..., object], count: int) -> bool:
    try:
        inspect.signature(method).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _step_trigger(hook: Hook) -> triggers.Trigger:
    if hook.every_n_steps is not None or _overrides(hook, "build_trigger"):
        return hook.build_trigger()
    if not (_overrides(hook, "before_step") or _overrides(hook, "after_step")):
        return triggers.Never()
    logging.warning(
        "Hook %s overrides before_step or after_step without `every_n_steps`, so it is called at "
        "every step. This splits the compiled loop into single steps and can make training "
        "several times slower. Set `every_n_steps`; use 1 if this is intended.",
        type(hook).__name__,
    )
    return triggers.EverySteps(1)


def _overrides(hook: Hook, method: str) -> bool:
    # Of the object, which may have functions of its own in place of methods.
    return getattr(getattr(hook, method), "__func__", None) is not getattr(Hook, method)
