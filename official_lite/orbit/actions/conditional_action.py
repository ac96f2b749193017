"""An action that is only taken under a condition."""

from collections.abc import Callable, Sequence
from typing import Any

from official_lite.orbit import runner

Condition = Callable[[runner.Output], Any]


class ConditionalAction:
    """Takes an action, or several in order, if `condition(output)` holds.

    Args:
      condition: Takes the output of training or evaluation; a bool or a boolean tensor.
      action: What to call with the output. Results are dropped.
    """

    def __init__(
        self,
        condition: Condition,
        action: Callable[[runner.Output], Any] | Sequence[Callable[[runner.Output], Any]],
    ) -> None:
        self.condition = condition
        self.action = action

    def __call__(self, output: runner.Output) -> None:
        if self.condition(output):
            for action in self.action if isinstance(self.action, Sequence) else [self.action]:
                action(output)
