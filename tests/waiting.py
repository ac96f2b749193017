"""Waiting for a condition instead of for some seconds, which are too few on a busy machine."""

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS = 300.0
"""When a test gives up: long after the slowest machine would be done."""

_T = TypeVar("_T")


def wait_for(
    condition: Callable[[], _T | None],
    *,
    alive: Callable[[], object] = lambda: True,
    told: Callable[[], object] = str,
) -> _T:
    """Return what `condition` returns as soon as that is true.

    Args:
        condition: Is called again and again.
        alive: Whether the condition may still become true, such as whether a process still runs.
        told: Returns what to show if it does not become true.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        # Asked first, since the condition may become true just before the process ends.
        is_alive = alive()
        if result := condition():
            return result
        assert is_alive, f"This can no longer happen: {told()}"
        assert time.monotonic() < deadline, f"This took {SECONDS:g} seconds: {told()}"
        time.sleep(0.002)
