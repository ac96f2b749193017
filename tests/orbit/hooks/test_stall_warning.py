import threading
import time

import pytest

from official_lite import orbit
from official_lite.orbit import hooks
from tests import waiting


class Waits(orbit.Hook):
    """A hook that blocks after a step until a condition holds."""

    every_n_steps = 2

    def __init__(self, condition):
        self.condition = condition

    def after_step(self):
        waiting.wait_for(self.condition)


class Fails(orbit.Hook):
    every_n_steps = 2

    def after_step(self):
        raise ArithmeticError("bad step")


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "stall_warning"]


def test_stalled_training_logs_warnings_with_the_stacks_of_all_threads(
    make_trainer, make_controller, caplog
):
    stall = hooks.StallWarning(seconds=0.05)
    waits = Waits(lambda: caplog.text.count("since step 2") == 3)
    began = time.monotonic()
    make_controller(make_trainer(), hooks=[stall, waits]).train(4)
    assert "No step was completed for" in caplog.text
    assert "waiting.wait_for(self.condition)" in caplog.text
    # The warnings are logged after 0.05, 0.1 and 0.2 seconds.
    assert time.monotonic() - began >= 0.2


def test_training_that_progresses_logs_no_stall_warning(make_trainer, make_controller, caplog):
    make_controller(make_trainer(), hooks=[hooks.StallWarning()]).train(4)
    assert "No step has" not in caplog.text
    assert not threads()


def test_stall_watchdog_thread_ends_when_training_fails(make_trainer, make_controller):
    controller = make_controller(make_trainer(), hooks=[hooks.StallWarning(), Fails()])
    with pytest.raises(ArithmeticError):
        controller.train(4)
    assert not threads()
