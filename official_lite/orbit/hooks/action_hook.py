"""A hook that runs an action."""

from collections.abc import Callable, Mapping
from typing import Any

from official_lite.common import errors, plugins, suggestions
from official_lite.orbit import runner
from official_lite.orbit.hooks.hook import Hook

_WHENS = ("report", "eval", "end")


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
        if when not in _WHENS:
            raise errors.ConfigValueError(
                f"`when` of ActionHook is {when!r}. {suggestions.did_you_mean(str(when), _WHENS)}"
            )
        self._action = _resolve(action)
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


def _resolve(action: object) -> Callable[[runner.Output], Any]:
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
