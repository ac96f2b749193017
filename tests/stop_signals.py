"""Stop signals that a test sends to its own process."""

import os
import signal

from official_lite import orbit
from official_lite.common import preemption
from tests import waiting


def request_stop() -> None:
    """Send SIGTERM to this process and wait until it is noticed."""
    os.kill(os.getpid(), signal.SIGTERM)
    waiting.wait_for(preemption.requested)


class SignalAt(orbit.Hook):
    """A hook that requests a stop at a step."""

    every_n_steps = 1

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self) -> None:
        if self.controller.step == self.step:
            request_stop()
