"""Hooks, which run user-defined Python code between steps: base classes, states and schedule.

The controller calls the methods of hooks in this order::

    before_train
    while step < last_step:
        before_step                   of the hooks due at the end of this stretch
        … one compiled call …
        after_step                    of the hooks due here
        after_restore                 if recovery has restored a checkpoint here
        after_eval(logs)              if there was an evaluation here
        after_epoch                   if an epoch ends here
        on_checkpoint(path)           if a checkpoint has become complete
    on_exception(error)               if something failed
    after_train(success)              always
"""

from __future__ import annotations

import collections
import copy
import functools
import inspect
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib import parse

import numpy as np
import tensorflow as tf
from absl import logging

from official_lite.common import errors, files, plugins, suggestions
from official_lite.orbit import attributes, runner, triggers

if TYPE_CHECKING:
    from official_lite.orbit.controller import Controller

Function: TypeAlias = Callable[..., None] | str
_ACTION_TIMES = ("report", "eval", "end")


class Hook:
    """Runs code between steps. All methods are optional.

    A subclass may define `after_eval`, `on_checkpoint`, `on_exception` and `after_train` without
    their argument.

    Hooks run in the order of the list passed to the controller; see also `sets_weights`. If a hook
    raises an error, the other hooks still receive the event, and then training ends with that
    error.

    Attributes:
        every_n_steps: The step interval of `before_step` and `after_step`. They run around the
            stretch of steps that ends at each multiple of this number. The compiled loop must stop
            there, so larger numbers cost less. 0 disables both methods. If a hook overrides one of
            them and leaves this attribute at `None`, it runs at every step and a warning is logged.
        name: The name of the hook's state in checkpoints. Defaults to the class name.
        watched_metric: The name of the metric that the hook needs in the results of evaluations.
            It is checked before training starts. Empty if there is none.
        sets_weights: Whether `after_eval` may set the model's weights. It then runs after the
            `after_eval` of all other hooks, which may save the weights that were evaluated.
        controller: The controller that runs the hook. Set by the controller.
        trainer: The trainer of that controller. Set by the controller.
    """

    every_n_steps: int | None = None
    name: str | None = None
    watched_metric: str = ""
    sets_weights: bool = False
    controller: Controller
    trainer: runner.AbstractTrainer | None

    @property
    def iter(self) -> int:
        """Return the 0-based index of the current step, or of the step that has just ended."""
        return self.controller.iter

    def build_trigger(self) -> triggers.Trigger:
        """Return the trigger of this hook; override it if `every_n_steps` is not enough."""
        return triggers.every(self.every_n_steps)

    def before_train(self) -> None:
        """Run before the first step."""

    def before_step(self) -> None:
        """Run before a stretch of steps that ends at a step at which this hook is due."""

    def after_step(self) -> None:
        """Run after a step at which this hook is due."""

    def after_epoch(self) -> None:
        """Run after every `steps_per_epoch` steps, if the controller was given that number."""

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        """Run after each evaluation, with its results."""

    def on_checkpoint(self, path: str) -> None:
        """Run after each checkpoint, once its files are complete.

        A checkpoint written in the background may be from an earlier step. Its path contains the
        step.
        """

    def on_exception(self, error: BaseException) -> None:
        """Run after training has failed, before `after_train`."""

    def after_train(self, success: bool) -> None:
        """Run at the end of training. `success` is false if training failed.

        After a stop signal, both `success` and `controller.is_interrupted` are true.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this hook to save in checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned.

        The hooks are restored first, and then the variables of the checkpoint.
        """

    def after_restore(self) -> None:
        """Run when recovery has restored a checkpoint during training, including all variables.

        It runs once per restore. A recovery may restore a checkpoint more than once.
        """

    def detach(self) -> None:
        """Drop all references to the controller and the trainer, so that they can be freed.

        With `trainer.fit_memory`, this method is called before another trainer is built for the
        same hook. A subclass that keeps parts of the trainer, such as its model, must extend it.
        """
        vars(self).pop("controller", None)
        vars(self).pop("trainer", None)


class GraphHook(Hook):
    """A hook that is traced into the training step, so its TensorFlow code runs in every step.

    `call` and `on_gradients` are traced on every replica. Their Python code runs only during
    tracing. They log numbers with `telemetry.put_scalar`. A graph hook may also define the methods
    of a `Hook`. The trainer must support graph hooks, as `core.base_trainer.Trainer` does.

    Attributes:
        takes_rows: Whether the hook accepts `tf.IndexedSlices` as the gradient of a table whose
            rows are updated; each row occurs once. If false, the gradient is converted to a dense
            tensor as large as the table.
    """

    takes_rows = False

    def call(self, logs: Mapping[str, Any]) -> None:
        """Run after the task's train step on a replica.

        Args:
            logs: The return value of the train step. With gradient accumulation, the value for a
                micro-batch.
        """
        del logs  # AutoGraph can't convert a function without statements.

    def on_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        """Run before an update, with gradients summed over the replicas and not yet clipped."""
        del grads_and_vars


class LambdaHook(Hook):
    """Calls the function given for each event.

    Each function receives the hook, which gives access to the controller and the trainer, followed
    by the arguments of the `Hook` method with the same name::

        LambdaHook(after_eval=lambda hook, logs: print(hook.controller.step, logs["accuracy"]))

    In a config, give a function's import path::

        {name: lambda, after_train: "my_package.notify:to_chat"}

    Args:
        before_train: Called as `before_train(hook)`.
        before_step: Called as `before_step(hook)`.
        after_step: Called as `after_step(hook)`.
        after_restore: Called as `after_restore(hook)`.
        after_epoch: Called as `after_epoch(hook)`.
        after_eval: Called as `after_eval(hook, logs)`.
        on_checkpoint: Called as `on_checkpoint(hook, path)`.
        on_exception: Called as `on_exception(hook, error)`.
        after_train: Called as `after_train(hook, success)`.
        every_n_steps: The interval of `before_step` and `after_step`, as in `Hook`.

    Raises:
        errors.ConfigTypeError: One of the event arguments is not a function.
    """

    def __init__(
        self,
        *,
        before_train: Function | None = None,
        before_step: Function | None = None,
        after_step: Function | None = None,
        after_restore: Function | None = None,
        after_epoch: Function | None = None,
        after_eval: Function | None = None,
        on_checkpoint: Function | None = None,
        on_exception: Function | None = None,
        after_train: Function | None = None,
        every_n_steps: int | None = None,
    ) -> None:
        self.every_n_steps = every_n_steps
        functions = {
            "before_train": before_train,
            "before_step": before_step,
            "after_step": after_step,
            "after_restore": after_restore,
            "after_epoch": after_epoch,
            "after_eval": after_eval,
            "on_checkpoint": on_checkpoint,
            "on_exception": on_exception,
            "after_train": after_train,
        }
        for event, function in functions.items():
            if function is not None:
                # Set the function on the object. If the class defined the method, every
                # `LambdaHook` would be called at every step and epoch.
                setattr(self, event, functools.partial(_resolve_function(event, function), self))


def _resolve_function(event: str, function: Function) -> Callable[..., None]:
    found = plugins.resolve(function, kind="function")
    if not callable(found):
        raise errors.ConfigTypeError(
            f"`{event}` of LambdaHook is {function!r}; expected a function, or its name as "
            "`package.module:function`."
        )
    return found


class ActionHook(Hook):
    """Calls an action: any callable that takes an output, such as those in `orbit.actions`.

    In a config, give the action's import path, with arguments if the action is a class::

        {name: action, when: report, action: {name: "my_package.actions:Alert", above: 10.0}}

    Args:
        action: The action, or a config entry as above.
        when: When to call the action. `report` makes it one of the controller's `train_actions`,
            called with what the trainer reports. `eval` calls it after each evaluation with the
            results. `end` calls it after successful training with the last value of everything that
            was reported.

    Raises:
        errors.ConfigValueError: `when` is none of these values.
        errors.ConfigTypeError: The action is not callable.
    """

    def __init__(self, action: Callable[[runner.Output], Any] | Any, when: str = "eval") -> None:
        if when not in _ACTION_TIMES:
            raise errors.ConfigValueError(
                f"`when` of ActionHook is {when!r}. "
                + suggestions.did_you_mean(str(when), _ACTION_TIMES)
            )
        self._action = _resolve_action(action)
        self._when = when

    def before_train(self) -> None:
        actions = self.controller.train_actions
        if self._when == "report" and self._action not in actions:
            self.controller.train_actions = (*actions, self._action)

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        if self._when == "eval":
            self._action(dict(logs))

    def after_train(self, success: bool) -> None:
        if self._when == "end" and success and not self.controller.is_interrupted:
            self._action(dict(self.controller.train_logs))


def _resolve_action(action: object) -> Callable[[runner.Output], Any]:
    if isinstance(action, Mapping):
        found = plugins.factory(action, kind="action", is_part=True)()
    else:
        found = plugins.resolve(action, kind="action")
        # If a class needs no arguments, a config may contain only the name of the class.
        found = found() if isinstance(found, type) else found
    if not callable(found):
        raise errors.ConfigTypeError(
            f"The action {action!r} is a {type(found).__name__}; expected a callable that takes "
            "an output."
        )
    return found


def output_directory(hook: Hook, directory: str) -> str:
    """Return an absolute or remote `directory` unchanged, otherwise join it to `model_dir`.

    Raises:
        errors.ConfigValueError: The path is relative and leads out of `model_dir`, or the
            controller has no `model_dir`.
    """
    directory = files.expand_home(directory)
    if os.path.isabs(directory) or "://" in directory:
        return directory
    plugins.require_subdirectory(directory, f"directory of {type(hook).__name__}")
    model_dir = hook.controller.model_dir
    if model_dir is None:
        raise errors.ConfigValueError(
            f"{type(hook).__name__} writes to `{directory}` in the `model_dir` of the run, but "
            "`model_dir` is not set. Pass `model_dir` to `Controller`, or an absolute path to the "
            "hook."
        )
    return os.path.join(model_dir, directory)


_JSON = "json"

# The item of a checkpoint that contains the stateful attributes of hooks.
_ATTRIBUTES = "hook_attributes"


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
        self._hooks = hooks_by_name(hooks)
        # The hooks whose states the last restored checkpoint contained.
        self._restored: set[str] = set()
        self._first_states: dict[str, dict[str, Any]] | None = None

    def serialize(self) -> bytes:
        states = {name: hook.state_dict() for name, hook in self._hooks.items()}
        return pack({name: state for name, state in states.items() if state})

    def deserialize(self, string_value: bytes) -> None:
        states = unpack(string_value)
        self._restored = set(states)
        for name, state in states.items():
            if name in self._hooks:
                self._hooks[name].load_state_dict(state)
            else:
                logging.warning(
                    "Ignoring the state of the hook %s in the checkpoint, because this run does "
                    "not have the hook.",
                    name,
                )

    def before_train(self) -> None:
        """Keep the initial states of hooks that the restored checkpoint does not contain.

        Call this after the hooks' own `before_train`, which may create the state.
        """
        if self._first_states is None:
            new = {n: hook for n, hook in self._hooks.items() if n not in self._restored}
            self._first_states = {n: copy.deepcopy(hook.state_dict()) for n, hook in new.items()}
        self._restored = set()

    def after_restore(self) -> None:
        """Notify the hooks that recovery has restored a checkpoint.

        The checkpoint may be from an earlier start that did not have all of the hooks. Hooks that
        are not in the checkpoint return to their initial states.
        """
        for name, state in (self._first_states or {}).items():
            if state and name not in self._restored:
                self._hooks[name].load_state_dict(copy.deepcopy(state))
        self._restored = set()
        _dispatch(self._hooks.values(), "after_restore")


def hooks_by_name(hooks: Iterable[Hook]) -> dict[str, Hook]:
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
            # NumPy would pickle an array of objects, and `unpack` does not load pickles.
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
    # For a type that Python lacks, such as `np.longdouble`, `item` returns the NumPy scalar itself.
    if isinstance(value, np.generic) and not isinstance(item := value.item(), np.generic):
        return item
    kind = f" of type {value.dtype}" if isinstance(value, np.ndarray) else ""
    raise TypeError(f"got a {type(value).__name__}{kind}")


# Maps the name of each hook method to the names of its arguments.
_ARGUMENTS = {
    name: tuple(inspect.signature(method).parameters)[1:]
    for name, method in {**vars(Hook), **vars(GraphHook)}.items()
    if inspect.isfunction(method)
}

# Hook methods that may omit their argument, because hooks written for LiBai and detectron2 define
# `after_train(self)`.
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
                    f"`hooks` contains a {type(hook).__name__}; expected only instances of "
                    "`orbit.Hook`."
                )
            _check_methods(hook)
        hears_epochs = any(_overrides(hook, "after_epoch") for hook in self._hooks)
        self._epoch = triggers.every(steps_per_epoch if hears_epochs else None)
        self._states: HookStates | None = None

    def next_step(self, step: int) -> float:
        """Return the first step after `step` at which a hook is due."""
        return triggers.AnyOf([*self._triggers, self._epoch]).next_step(step)

    def before_train(self) -> None:
        """Call `before_train` of all hooks."""
        _dispatch(self._hooks, "before_train")
        if self._states is not None:
            self._states.before_train()

    def before_steps(self, until: int) -> None:
        """Call `before_step` of the hooks that are due at `until`."""
        _dispatch(self._due(until), "before_step")

    def after_steps(self, step: int) -> None:
        """Call `after_step` of the hooks that are due at `step`."""
        _dispatch(self._due(step), "after_step")

    def after_epoch(self, step: int) -> None:
        """Call `after_epoch` of all hooks if an epoch ends at `step`."""
        if self._epoch.is_due(step):
            _dispatch(self._hooks, "after_epoch")

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        """Call `after_eval` of all hooks, and last of those that may set the weights."""
        _dispatch(sorted(self._hooks, key=lambda hook: hook.sets_weights), "after_eval", logs)

    def dispatch(self, event: str, *args: Any) -> None:
        """Call the method named `event` of every hook."""
        _dispatch(self._hooks, event, *args)

    def save_in(self, checkpoint: tf.train.Checkpoint, *, with_attributes: bool) -> None:
        """Add the hooks to a checkpoint, if any has a state or overrides `after_restore`.

        Args:
            checkpoint: The checkpoint.
            with_attributes: Whether to also add the stateful attributes of hooks, and of the
                callbacks that they run.

        Raises:
            errors.ConfigValueError: Two hooks have the same name.
        """
        if with_attributes:
            self._save_attributes_in(checkpoint)
        methods = ("state_dict", "after_restore")
        if any(_overrides(hook, method) for hook in self._hooks for method in methods):
            self._states = checkpoint.hooks = HookStates(self._hooks)

    def _save_attributes_in(self, checkpoint: tf.train.Checkpoint) -> None:
        # Remove what an earlier controller added, because `find_state` skips objects that are in
        # the checkpoint.
        attributes.replace(checkpoint, _ATTRIBUTES, None)
        known = attributes.parts_of(checkpoint)
        found = []
        for hook in self._hooks:
            callback = attributes.attributes_of(getattr(hook, "callback", None))
            own = {**attributes.attributes_of(hook), "callback": callback}
            attributes.warn_of_iterators(type(hook).__name__, own)
            found.append(attributes.find_state(own, known))
        if any(found):
            pairs = zip(hooks_by_name(self._hooks), found, strict=True)
            state = {name: items for name, items in pairs if items}
            attributes.replace(checkpoint, _ATTRIBUTES, state)

    def attach(self, controller: Controller, trainer: runner.AbstractTrainer | None) -> None:
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
        # Build the triggers after the hooks are attached, because a trigger may depend on the
        # controller.
        return [_step_trigger(hook) for hook in self._hooks]

    def _due(self, step: int) -> list[Hook]:
        pairs = zip(self._hooks, self._triggers, strict=True)
        return [hook for hook, trigger in pairs if trigger.is_due(step)]


def _dispatch(hooks: Iterable[Hook], event: str, *args: Any) -> None:
    first_error = None
    for hook in hooks:
        try:
            method = getattr(hook, event)
            method(*args) if not args or _takes(method, len(args)) else method()
        except BaseException as error:  # The other hooks still receive the event.
            if first_error is None:
                first_error = error
            else:
                logging.exception(
                    "%s.%s also failed, after another hook had failed.", type(hook).__name__, event
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
    # A `LambdaHook` stores functions as instance attributes, which replace the methods.
    return getattr(getattr(hook, method), "__func__", None) is not getattr(Hook, method)
