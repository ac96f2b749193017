"""Triggers, which decide when events happen: at step intervals, time intervals or given steps.

A trigger answers two questions. `next_step(step)` returns how far the compiled loop may run before
the trigger must be checked again. `is_due(step)` returns whether the event is due at that step.
Step triggers count absolute steps: in a run that resumes at step 15, a trigger with an interval of
10 is due at steps 20 and 30.
"""

import abc
import math
import time
from collections.abc import Callable, Iterable

from official_lite.common import errors


class Trigger(abc.ABC):
    """Decides when an event is due. Steps are the number of completed training steps."""

    @abc.abstractmethod
    def next_step(self, step: int) -> float:
        """Return the first step after `step` at which this trigger may be due.

        Return `math.inf` if the trigger is never due or does not depend on steps.
        """

    @abc.abstractmethod
    def is_due(self, step: int) -> bool:
        """Return whether the event is due after `step` completed steps."""


class Never(Trigger):
    """A trigger that is never due."""

    def next_step(self, step: int) -> float:
        return math.inf

    def is_due(self, step: int) -> bool:
        return False


class EverySteps(Trigger):
    """A trigger that is due at multiples of `num_steps`, except 0.

    Raises:
        errors.ConfigValueError: `num_steps` is less than 1.
    """

    def __init__(self, num_steps: int) -> None:
        if num_steps < 1:
            raise errors.ConfigValueError(f"The interval must be at least 1 step, got {num_steps}.")
        self._num_steps = num_steps

    def next_step(self, step: int) -> float:
        return step - step % self._num_steps + self._num_steps

    def is_due(self, step: int) -> bool:
        return step > 0 and step % self._num_steps == 0


class EverySeconds(Trigger):
    """A trigger that is due at the first check after `seconds` have passed since it was last due.

    It does not interrupt the compiled loop, so the interval cannot be shorter than the time between
    two checks. Because the clocks of workers differ, use a step trigger for events that all workers
    must handle together.

    Args:
        seconds: The interval, which begins when the trigger is created.
        clock: Returns the time in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last_time = clock()
        self._last_step: int | None = None

    def next_step(self, step: int) -> float:
        return math.inf

    def is_due(self, step: int) -> bool:
        # Several callers may query the same step, so all calls for that step return the same
        # answer.
        if step != self._last_step and self._clock() - self._last_time >= self._seconds:
            self._last_time, self._last_step = self._clock(), step
        return step == self._last_step


class AtSteps(Trigger):
    """A trigger that is due at the given steps."""

    def __init__(self, steps: Iterable[int]) -> None:
        self._steps = frozenset(steps)

    def next_step(self, step: int) -> float:
        return min((due for due in self._steps if due > step), default=math.inf)

    def is_due(self, step: int) -> bool:
        return step in self._steps


class AnyOf(Trigger):
    """A trigger that is due when any of `triggers` is due."""

    def __init__(self, triggers: Iterable[Trigger]) -> None:
        self._triggers = tuple(triggers)

    def next_step(self, step: int) -> float:
        return min((trigger.next_step(step) for trigger in self._triggers), default=math.inf)

    def is_due(self, step: int) -> bool:
        # Query all triggers, so that two time triggers that are due at the same step cause only one
        # event.
        answers = [trigger.is_due(step) for trigger in self._triggers]
        return any(answers)


class AllOf(Trigger):
    """A trigger that is due when all of `triggers` are due."""

    def __init__(self, triggers: Iterable[Trigger]) -> None:
        self._triggers = tuple(triggers)

    def next_step(self, step: int) -> float:
        if any(isinstance(trigger, Never) for trigger in self._triggers):
            return math.inf
        finite = [due for due in self._next_steps(step) if due < math.inf]
        return max(finite, default=math.inf)

    def is_due(self, step: int) -> bool:
        # Query the time triggers, whose `next_step` is infinite, last, and only if all others are
        # due. The call of `is_due` restarts the interval of a time trigger that is due.
        asked = sorted(self._triggers, key=lambda trigger: trigger.next_step(step) == math.inf)
        return bool(asked) and all(trigger.is_due(step) for trigger in asked)

    def _next_steps(self, step: int) -> list[float]:
        return [trigger.next_step(step) for trigger in self._triggers]


def every(num_steps: int | None) -> Trigger:
    """Return a trigger for every `num_steps` steps; `None` and 0 mean never."""
    return EverySteps(num_steps) if num_steps else Never()


def at_end(last_step: int) -> Trigger:
    """Return a trigger for the step at which the run ends."""
    return AtSteps([last_step])
