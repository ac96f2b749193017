"""An action that runs only if a condition holds."""

from collections.abc import Callable, Sequence
from typing import Any

from official_lite.orbit import runner

Condition = Callable[[runner.Output], Any]


class ConditionalAction:
    """Runs an action, or several in order, if `condition(output)` is true.

    Args:
        condition: A function that takes the output of training or evaluation and returns a bool or
            a boolean tensor.
        action: One or more callables that receive the output. Their results are ignored.
    """

    def __init__(
        self,
        condition: Condition,
        action: Callable[[runner.Output], Any] | Sequence[Callable[[runner.Output], Any]],
    ) -> None:
        self.condition = condition
        self.action = action

    def before_train(self) -> None:
        """Call the methods `before_train` of the condition and of the actions, if they have one."""
        for part in (self.condition, *self._actions):
            getattr(part, "before_train", lambda: None)()

    def __call__(self, output: runner.Output) -> None:
        if self.condition(output):
            for action in self._actions:
                action(output)

    @property
    def _actions(self) -> Sequence[Callable[[runner.Output], Any]]:
        return self.action if isinstance(self.action, Sequence) else [self.action]
