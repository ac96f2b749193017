"""A hook that interrupts trials."""

import os
import pathlib
import signal

from official_lite import orbit


class StopOnce(orbit.Hook):
    """A hook that signals its process the first time that any trial of a study reaches a step."""

    def __init__(self, marker: str, step: int, number: int) -> None:
        self.every_n_steps = step
        self._marker = pathlib.Path(marker)
        self._number = number

    def after_step(self) -> None:
        if not self._marker.exists():
            self._marker.write_text("stopped")
            os.kill(os.getpid(), self._number)


SIGTERM = int(signal.SIGTERM)
