import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_lite.common import errors
from official_lite.orbit import triggers


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def due_steps(trigger: triggers.Trigger, first: int, last: int) -> list[int]:
    return [step for step in range(first, last + 1) if trigger.is_due(step)]


def test_every_steps_trigger_is_due_at_multiples_of_the_interval():
    trigger = triggers.EverySteps(10)
    assert due_steps(trigger, 0, 30) == [10, 20, 30]
    assert [trigger.next_step(step) for step in (0, 9, 10, 15)] == [10, 10, 20, 20]


def test_trigger_without_an_interval_is_never_due_and_a_negative_interval_raises():
    for trigger in (triggers.every(None), triggers.every(0), triggers.Never()):
        assert not due_steps(trigger, 0, 20)
        assert trigger.next_step(0) == math.inf
    with pytest.raises(errors.ConfigValueError, match="-1"):
        triggers.every(-1)


def test_at_steps_trigger_is_due_at_exactly_the_listed_steps():
    trigger = triggers.AtSteps([3, 7])
    assert due_steps(trigger, 0, 10) == [3, 7]
    assert due_steps(triggers.at_end(8), 0, 10) == [8]
    assert [trigger.next_step(step) for step in (0, 3, 7)] == [3, 7, math.inf]


def test_every_seconds_trigger_is_due_once_its_interval_has_elapsed():
    clock = Clock()
    trigger = triggers.EverySeconds(60, clock)
    assert not trigger.is_due(1)
    clock.now = 61
    assert trigger.is_due(2)
    assert trigger.is_due(2), "the same step gets the same answer"
    assert not trigger.is_due(3)
    clock.now = 121
    assert trigger.is_due(4)
    assert trigger.next_step(4) == math.inf


def test_any_of_trigger_is_due_when_one_of_its_parts_is_due():
    trigger = triggers.AnyOf([triggers.EverySteps(7), triggers.EverySteps(10)])
    assert due_steps(trigger, 0, 21) == [7, 10, 14, 20, 21]
    assert [trigger.next_step(step) for step in (0, 7, 14)] == [7, 10, 20]


def test_any_of_trigger_is_due_once_if_two_time_triggers_are_due_at_the_same_step():
    clock = Clock()
    trigger = triggers.AnyOf([triggers.EverySeconds(5, clock), triggers.EverySeconds(5, clock)])
    clock.now = 6
    assert [trigger.is_due(step) for step in (1, 2)] == [True, False]


def test_all_of_trigger_is_due_when_all_its_parts_are_due():
    trigger = triggers.AllOf([triggers.EverySteps(2), triggers.EverySteps(3)])
    assert due_steps(trigger, 0, 12) == [6, 12]


def test_all_of_trigger_restarts_a_time_trigger_only_when_all_parts_are_due():
    clock = Clock()
    trigger = triggers.AllOf([triggers.EverySeconds(60, clock), triggers.EverySteps(10)])
    clock.now = 61
    assert not trigger.is_due(5)
    assert trigger.is_due(10)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=3), st.integers(0, 100))
def test_next_step_of_a_combined_trigger_never_skips_a_due_step(intervals, step):
    parts = [triggers.EverySteps(interval) for interval in intervals]
    for trigger in (triggers.AnyOf(parts), triggers.AllOf(parts)):
        following = trigger.next_step(step)
        assert following > step
        assert not any(trigger.is_due(between) for between in range(step + 1, int(following)))
