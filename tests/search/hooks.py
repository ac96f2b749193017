"""A hook that breaks trials off."""

import os
import pathlib
import signal

from official_lite import orbit


class StopOnce(orbit.Hook):
    """Sends a signal to its process, the first time that any training of a study is at a step."""

    def __init__(self, marker: str, step: int, number: int) -> None:
        self.every_n_steps = step
        self._marker = pathlib.Path(marker)
        self._number = number

    def after_step(self) -> None:
        if not self._marker.exists():
            self._marker.write_text("stopped")
            os.kill(os.getpid(), self._number)


SIGTERM = int(signal.SIGTERM)
