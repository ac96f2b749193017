"""Waits for checkpoints that another process writes."""

import time
from collections.abc import Callable, Iterator

from absl import logging

from official_lite.checkpoint import latest
from official_lite.orbit import preemption


def watch_checkpoints(
    directory: str,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Yields every checkpoint of a directory once, in the order in which they were saved.

    Args:
      directory: Where a checkpoint manager saves, ours or TensorFlow's.
      timeout: Seconds to wait for a checkpoint; `None` waits for ever.
      timeout_fn: Called when the time is over; the wait begins anew if it returns false. Without
        it, the end of the time is the end.
      clock: Returns the time in seconds.
      sleep: Waits for a number of seconds.
    """
    seen: set[str] = set()
    waiting_since = clock()
    while True:
        for path in _new_checkpoints(directory, seen):
            seen.add(path)
            yield path
            waiting_since = clock()
        if timeout is not None and clock() - waiting_since >= timeout:
            logging.info("No new checkpoint in %s for %g seconds.", directory, timeout)
            if timeout_fn is None or timeout_fn():
                return
            waiting_since = clock()
        preemption.check()
        sleep(1.0 if timeout is None else min(1.0, timeout))


def _new_checkpoints(directory: str, seen: set[str]) -> list[str]:
    return [path for path in latest.find_checkpoints(directory) if path not in seen]
