"""Triggers, which decide when an event is due: by steps, by seconds, or at given steps.

A trigger is asked two things. `next_step(step)` is how far the compiled loop may run before the
question comes up again; `is_due(step)` is the answer once it is there. Step triggers count in
absolute steps: with an interval of 10, a run that resumes at step 15 is due at 20 and 30.
"""

import abc
import math
import time
from collections.abc import Callable, Iterable

from official_lite.common import errors


class Trigger(abc.ABC):
    """Answers when. A step is the number of training steps completed."""

    @abc.abstractmethod
    def next_step(self, step: int) -> float:
        """Return the first step after `step` at which the trigger may be due.

        `math.inf` if that is never, or if steps do not decide it.
        """

    @abc.abstractmethod
    def is_due(self, step: int) -> bool:
        """Whether it is time, now that `step` steps are done."""


class Never(Trigger):
    """Is never due."""

    def next_step(self, step: int) -> float:
        return math.inf

    def is_due(self, step: int) -> bool:
        return False


class EverySteps(Trigger):
    """Is due at the multiples of `num_steps`, except 0.

    Raises:
      errors.ConfigValueError: `num_steps` is less than 1.
    """

    def __init__(self, num_steps: int) -> None:
        if num_steps < 1:
            raise errors.ConfigValueError(
                f"An interval of {num_steps} steps is not possible; it must be at least 1."
            )
        self._num_steps = num_steps

    def next_step(self, step: int) -> float:
        return step - step % self._num_steps + self._num_steps

    def is_due(self, step: int) -> bool:
        return step > 0 and step % self._num_steps == 0


class EverySeconds(Trigger):
    """Is due at the first chance after `seconds` have passed since it last was.

    It cuts no loop short, so the interval can't be finer than the steps between two chances.
    The clocks of several workers disagree: what all of them must do together needs steps.

    Args:
      seconds: The interval. It begins when the trigger is created.
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
        # Asked again at the same step it gives the same answer, so that several may ask.
        if step != self._last_step and self._clock() - self._last_time >= self._seconds:
            self._last_time, self._last_step = self._clock(), step
        return step == self._last_step


class AtSteps(Trigger):
    """Is due at the given steps."""

    def __init__(self, steps: Iterable[int]) -> None:
        self._steps = frozenset(steps)

    def next_step(self, step: int) -> float:
        return min((due for due in self._steps if due > step), default=math.inf)

    def is_due(self, step: int) -> bool:
        return step in self._steps


class AnyOf(Trigger):
    """Is due when one of `triggers` is."""

    def __init__(self, triggers: Iterable[Trigger]) -> None:
        self._triggers = tuple(triggers)

    def next_step(self, step: int) -> float:
        return min((trigger.next_step(step) for trigger in self._triggers), default=math.inf)

    def is_due(self, step: int) -> bool:
        # All are asked, so that two clocks that are due together count as one.
        answers = [trigger.is_due(step) for trigger in self._triggers]
        return any(answers)


class AllOf(Trigger):
    """Is due when all of `triggers` are."""

    def __init__(self, triggers: Iterable[Trigger]) -> None:
        self._triggers = tuple(triggers)

    def next_step(self, step: int) -> float:
        if any(isinstance(trigger, Never) for trigger in self._triggers):
            return math.inf
        finite = [due for due in self._next_steps(step) if due < math.inf]
        return max(finite, default=math.inf)

    def is_due(self, step: int) -> bool:
        # Those that wait for a clock come last: a clock that is asked at a step at which the
        # others are not due would begin its interval anew for nothing.
        asked = sorted(self._triggers, key=lambda trigger: trigger.next_step(step) == math.inf)
        return bool(asked) and all(trigger.is_due(step) for trigger in asked)

    def _next_steps(self, step: int) -> list[float]:
        return [trigger.next_step(step) for trigger in self._triggers]


def every(num_steps: int | None) -> Trigger:
    """Every `num_steps` steps; `None` and 0 are never."""
    return EverySteps(num_steps) if num_steps else Never()


def at_end(last_step: int) -> Trigger:
    """At the step at which the run is to end."""
    return AtSteps([last_step])
