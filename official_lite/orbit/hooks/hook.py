"""Hooks, which run user-defined Python code between steps: base classes, functions and actions.

The controller calls the methods of hooks in this order::

    before_train
    while step < last_step:
        before_step                   of the hooks due at the end of this stretch
        … one compiled call …
        after_step                    of the hooks due here
        after_eval(logs)              if there was an evaluation here
        after_epoch                   if an epoch ends here
        on_checkpoint(path)           if a checkpoint has become complete
    on_exception(error)               if something failed
    after_train(success)              always
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import tensorflow as tf

from official_lite import telemetry
from official_lite.common import errors, files, plugins, suggestions
from official_lite.orbit import runner, triggers

Function: TypeAlias = Callable[..., None] | str
_ACTION_TIMES = ("report", "eval", "end")


class RunningController(Protocol):
    """The part of `orbit.Controller` that hooks use, documented in that class."""

    global_step: tf.Variable
    trainer: runner.AbstractTrainer | None
    evaluator: runner.AbstractEvaluator | None
    strategy: tf.distribute.Strategy
    checkpoint_manager: tf.train.CheckpointManager | None
    storage: telemetry.EventStorage
    train_actions: Sequence[Callable[[runner.Output], None]]
    eval_preparations: list[Callable[[], None]]
    eval_steps: int
    first_step: int
    last_step: int
    steps_per_epoch: int | None
    is_interrupted: bool
    model_dir: str | None

    @property
    def step(self) -> int: ...
    @property
    def iter(self) -> int: ...
    @property
    def train_logs(self) -> runner.Output: ...
    @property
    def eval_logs(self) -> runner.Output: ...
    @property
    def train_seconds(self) -> float: ...
    def evaluate(self, steps: int = -1) -> runner.Output | None: ...
    def save_checkpoint(self) -> str | None: ...
    def checkpoint_every(self, num_steps: int) -> None: ...
    def request_stop(self, reason: str) -> None: ...


class Hook:
    """Runs code between steps. All methods are optional.

    A subclass may define `after_eval`, `on_checkpoint`, `on_exception` and `after_train` without
    their argument.

    Hooks run in the order of the list passed to the controller. If a hook raises an error, the
    other hooks still receive the event, and then training ends with that error.

    Attributes:
      every_n_steps: The step interval of `before_step` and `after_step`. They run around the
        stretch of steps that ends at each multiple of this number. The compiled loop must stop
        there, so larger numbers cost less. 0 disables both methods. If a hook overrides one of them
        and leaves this attribute at `None`, it runs at every step and a warning is logged.
      name: The name of the hook's state in checkpoints. Defaults to the class name.
      watched_metric: The name of the metric that the hook needs in the results of evaluations.
        It is checked before training starts. Empty if there is none.
      controller: The controller that runs the hook. Set by the controller.
      trainer: The trainer of that controller. Set by the controller.
    """

    every_n_steps: int | None = None
    name: str | None = None
    watched_metric: str = ""
    controller: RunningController
    trainer: runner.AbstractTrainer | None

    @property
    def iter(self) -> int:
        """Return the 0-based index of the current step, or of the step that has just ended."""
        return self.controller.iter

    def build_trigger(self) -> triggers.Trigger:
        """Return when this hook is due. Override it if `every_n_steps` is not flexible enough."""
        return triggers.every(self.every_n_steps)

    def before_train(self) -> None:
        """Run before the first step."""

    def before_step(self) -> None:
        """Run before a stretch of steps that ends at a step at which this hook is due."""

    def after_step(self) -> None:
        """Run after a step at which this hook is due."""

    def after_epoch(self) -> None:
        """Run after every `steps_per_epoch` steps, if the controller knows that number."""

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

        After a signal it is true, and so is `controller.is_interrupted`: a resumed run continues.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this hook to save in checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


class GraphHook(Hook):
    """A hook that is traced into the training step, so its TensorFlow code runs in every step.

    `call` and `on_gradients` are traced on every replica. Their Python code runs only during
    tracing. They log numbers with `telemetry.put_scalar`. A graph hook may also define the methods
    of a `Hook`. The trainer must support graph hooks, as `core.base_trainer.Trainer` does.

    Attributes:
      takes_rows: Whether the hook accepts `tf.IndexedSlices` as the gradient of a table whose rows
        are updated; each row occurs once. If false, the gradient is converted to a dense tensor as
        large as the table.
    """

    takes_rows = False

    def call(self, logs: Mapping[str, Any]) -> None:
        """Run after the task's train step on a replica.

        Args:
          logs: The return value of the train step. With gradient accumulation, the value for a
            micro-batch.
        """
        del logs  # AutoGraph can't convert a function of no statements.

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
            "after_epoch": after_epoch,
            "after_eval": after_eval,
            "on_checkpoint": on_checkpoint,
            "on_exception": on_exception,
            "after_train": after_train,
        }
        for event, function in functions.items():
            if function is not None:
                # On the object: a method of the class would ask for every step and every epoch.
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
        results. `end` calls it after successful training with the last value of everything that was
        reported.

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
        # A class that needs no arguments may be given by its name alone.
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
      errors.ConfigValueError: The path is relative and leads out of `model_dir`, or the controller
        has no `model_dir`.
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
