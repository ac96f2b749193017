"""Hooks: Python of the user's own between the steps.

::

    before_train
    while step < last_step:
        before_step                   of the hooks due at the end of this stretch
        … one compiled call …
        after_step                    of the hooks due here
        after_epoch                   if an epoch ends here
        after_eval(logs)              if there was an evaluation here
        on_checkpoint(path)           if a checkpoint was saved here
    on_exception(error)               if something failed
    after_train(success)              always
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from absl import logging

from official_lite.common import errors
from official_lite.orbit import runner, triggers


class Loop(Protocol):
    """What a hook may ask of the controller it runs under."""

    global_step: Any

    @property
    def iter(self) -> int:
        """The 0-based number of the step that is under way, or has just ended."""

    def request_stop(self, reason: str) -> None:
        """Ends training after this step."""

    def save_checkpoint(self) -> str | None:
        """Saves now."""


class Hook:
    """Something to do between steps. All methods are optional.

    Hooks run in the order of the list they were given in. An error in one of them does not keep
    the event from the others, but it ends the training.

    Attributes:
      every_n_steps: How often the hook needs the loop: its `before_step` and `after_step` run
        around the stretch of steps that ends at each multiple of this number. The compiled loop
        is cut there, so a large number is cheap. 0 stands for not at all. A hook that overrides
        one of the two methods and leaves this at `None` gets every step, and a warning.
      controller: The controller that runs the hook, set by it.
      trainer: The trainer of that controller, set by it.
    """

    every_n_steps: int | None = None
    controller: Loop
    trainer: runner.AbstractTrainer | None

    @property
    def iter(self) -> int:
        """The 0-based number of the step that is under way, or has just ended."""
        return self.controller.iter

    def before_train(self) -> None:
        """Before the first step."""

    def before_step(self) -> None:
        """Before a stretch of steps that ends at a step at which this hook is due."""

    def after_step(self) -> None:
        """After a step at which this hook is due."""

    def after_epoch(self) -> None:
        """After each `steps_per_epoch` steps, if the controller knows that number."""

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        """After each evaluation, with its results."""

    def on_checkpoint(self, path: str) -> None:
        """After each checkpoint."""

    def on_exception(self, error: BaseException) -> None:
        """After training has failed, before `after_train`."""

    def after_train(self, success: bool) -> None:
        """At the end, also of a training that failed; then `success` is false."""

    def state_dict(self) -> dict[str, Any]:
        """What the hook remembers, for a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` returned."""


class HookList:
    """The hooks of a controller, and when each of them needs the loop.

    Args:
      hooks: In the order in which they are to run.
      steps_per_epoch: For `after_epoch`.

    Raises:
      errors.ConfigTypeError: One of them is not a `Hook`.
    """

    def __init__(self, hooks: Iterable[Hook], steps_per_epoch: int | None = None) -> None:
        self._hooks = tuple(hooks)
        for hook in self._hooks:
            if not isinstance(hook, Hook):
                raise errors.ConfigTypeError(
                    f"`hooks` holds a {type(hook).__name__}; derive it from `orbit.Hook`."
                )
        self._triggers = [_step_trigger(hook) for hook in self._hooks]
        hears_epochs = any(_overrides(hook, "after_epoch") for hook in self._hooks)
        self._epoch = triggers.every(steps_per_epoch if hears_epochs else None)

    def next_step(self, step: int) -> float:
        """The first step after `step` at which a hook needs the loop."""
        return triggers.AnyOf([*self._triggers, self._epoch]).next_step(step)

    def before_steps(self, until: int) -> None:
        """`before_step` of the hooks that are due at `until`."""
        _tell(self._due(until), "before_step")

    def after_steps(self, step: int) -> None:
        """`after_step` of the hooks that are due at `step`, and `after_epoch` if it is time."""
        _tell(self._due(step), "after_step")
        if self._epoch.is_due(step):
            _tell(self._hooks, "after_epoch")

    def tell(self, event: str, *args: Any) -> None:
        """Calls the method named `event` of every hook."""
        _tell(self._hooks, event, *args)

    def attach(self, controller: Loop, trainer: runner.AbstractTrainer | None) -> None:
        """Tells the hooks who runs them."""
        for hook in self._hooks:
            hook.controller, hook.trainer = controller, trainer

    def _due(self, step: int) -> list[Hook]:
        pairs = zip(self._hooks, self._triggers, strict=True)
        return [hook for hook, trigger in pairs if trigger.is_due(step)]


def _tell(hooks: Iterable[Hook], event: str, *args: Any) -> None:
    # An exit stack runs all its callbacks, whatever they raise, the last one pushed first.
    with contextlib.ExitStack() as stack:
        for hook in reversed(list(hooks)):
            stack.callback(getattr(hook, event), *args)


def _step_trigger(hook: Hook) -> triggers.Trigger:
    if hook.every_n_steps is not None:
        return triggers.every(hook.every_n_steps)
    if not (_overrides(hook, "before_step") or _overrides(hook, "after_step")):
        return triggers.Never()
    logging.warning(
        "Hook %s has before_step or after_step and no `every_n_steps`: it gets every step, which "
        "cuts the compiled loop into single steps and can make training several times slower. "
        "State how often the hook needs the loop; `every_n_steps = 1` says that this is meant.",
        type(hook).__name__,
    )
    return triggers.EverySteps(1)


def _overrides(hook: Hook, method: str) -> bool:
    return getattr(type(hook), method) is not getattr(Hook, method)
