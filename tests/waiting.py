"""Waiting for a condition instead of a fixed time, which may be too short on a busy machine."""

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS = 840.0
"""The timeout of a wait, just below pytest's for a whole test, so that the wait can say why."""

_T = TypeVar("_T")


def wait_for(
    condition: Callable[[], _T | None],
    *,
    alive: Callable[[], object] = lambda: True,
    told: Callable[[], object] = str,
) -> _T:
    """Return the value of `condition()` as soon as it is true.

    Args:
        condition: A function that is called repeatedly.
        alive: Returns whether the condition may still become true, for example because a process
            still runs.
        told: Returns the error message for a condition that does not become true.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        # `alive` is called first, because the condition may become true just before a process ends.
        is_alive = alive()
        if result := condition():
            return result
        assert is_alive, f"This can no longer happen: {told()}"
        assert time.monotonic() < deadline, f"This took {SECONDS:g} seconds: {told()}"
        time.sleep(0.002)
