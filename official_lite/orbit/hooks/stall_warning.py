"""A hook that warns when training makes no progress."""

import sys
import threading
import traceback
from typing import Any

from absl import logging

from official_lite.orbit.hooks.hook import Hook


class StallWarning(Hook):
    """Warns if no step completes for some time, and logs the stack of every Python thread.

    The usual cause is an input that hangs: a generator that waits for a server, or a file system
    that does not respond. Training continues if data arrive again. The delay doubles with each
    further warning. A separate thread reads the global step occasionally, which costs almost
    nothing.

    Args:
      seconds: The number of seconds without a completed step before the first warning. Compilation
        and evaluation time counts.
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
    "No step was completed for %.0f s since step %d. Either the input pipeline hangs, or a "
    "compilation or evaluation takes long. Stack traces of all threads:\n%s"
)


def _stacks() -> str:
    """Format the stacks of all threads except the current one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    frames: dict[int, Any] = sys._current_frames()
    return "\n".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames.items()
        if ident != own
    )
