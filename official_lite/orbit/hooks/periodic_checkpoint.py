"""A hook that saves checkpoints at its own interval."""

from official_lite.common import errors
from official_lite.orbit.hooks.hook import Hook


class PeriodicCheckpoint(Hook):
    """Saves a checkpoint every `every_n_steps` steps, and at the end.

    These checkpoints are in addition to those of the checkpoint manager's interval; each step is
    saved at most once. The controller saves them after the evaluation of the step, so they include
    the state of the hooks after that evaluation.

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
                "PeriodicCheckpoint requires a `checkpoint_manager`. Pass one to `Controller`."
            )
        self.controller.checkpoint_every(self._interval)
