"""Saves checkpoints at an interval of its own."""

from official_lite.common import errors
from official_lite.orbit.hooks.hook import Hook


class PeriodicCheckpoint(Hook):
    """Hook that makes the controller save every `every_n_steps` steps and at the end.

    That is in addition to what the checkpoint manager's own interval says, and never twice at one
    step. It is saved where the controller saves: after the evaluation of that step, so that what
    the hooks made of it is in the checkpoint.

    Args:
      every_n_steps: The interval.

    Raises:
      errors.ConfigValueError: The interval is not positive.
    """

    def __init__(self, every_n_steps: int) -> None:
        if every_n_steps < 1:
            raise errors.ConfigValueError(
                f"`every_n_steps` of PeriodicCheckpoint is {every_n_steps}; it must be at least 1."
            )
        self._interval = every_n_steps

    def before_train(self) -> None:
        if self.controller.checkpoint_manager is None:
            raise errors.ConfigValueError(
                "PeriodicCheckpoint needs a `checkpoint_manager`; pass one to `Controller`."
            )
        self.controller.checkpoint_every(self._interval)
