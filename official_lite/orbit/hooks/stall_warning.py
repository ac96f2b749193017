"""Tells of a training that does not get on."""

import sys
import threading
import traceback
from typing import Any

from absl import logging

from official_lite.orbit.hooks.hook import Hook


class StallWarning(Hook):
    """Hook that warns if no step is completed for some time, and shows what Python is doing.

    The usual reason is an input that hangs: a generator that waits for a server, a file system
    that does not answer. The training goes on if the data do. Later warnings come after twice the
    time each. It costs a look at the global step now and then, in a thread of its own.

    Args:
      seconds: How long is too long. Compiling and evaluating count as well.
    """

    every_n_steps = 0

    def __init__(self, seconds: float = 600.0) -> None:
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def before_train(self) -> None:
        self._stopped.clear()
        self._thread = threading.Thread(target=self._watch, name="stall_warning", daemon=True)
        self._thread.start()

    def after_train(self, success: bool) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        step, waited, limit = self.controller.step, 0.0, self._seconds
        pause = self._seconds / 4
        while not self._stopped.wait(pause):
            now = self.controller.step
            if now != step:
                step, waited, limit = now, 0.0, self._seconds
                continue
            waited += pause
            if waited >= limit:
                limit *= 2
                logging.warning(_MESSAGE, waited, step, _stacks())


_MESSAGE = (
    "No step has been completed for %.0f s, since step %d. Either the training data hang, or this "
    "is a long compilation or evaluation. What Python is doing:\n%s"
)


def _stacks() -> str:
    """Where each thread is, but this one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    frames: dict[int, Any] = sys._current_frames()
    return "\n".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames.items()
        if ident != own
    )
