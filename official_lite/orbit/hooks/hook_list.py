"""The hooks of a controller as one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from absl import logging

from official_lite.common import errors
from official_lite.orbit import runner, triggers
from official_lite.orbit.hooks.hook import Hook

if TYPE_CHECKING:
    from official_lite.orbit.controller import Controller


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

    def attach(self, controller: Controller, trainer: runner.AbstractTrainer | None) -> None:
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
