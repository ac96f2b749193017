"""A hook that profiles selected steps."""

import itertools
from collections.abc import Sequence

import tensorflow as tf
from absl import logging

from official_lite.checkpoint import directories
from official_lite.common import errors
from official_lite.orbit import triggers
from official_lite.orbit.hooks.hook import Hook
from official_lite.orbit.hooks.output_directory import output_directory


class Profiler(Hook):
    """Runs TensorFlow's profiler over selected steps, for TensorBoard's Profile page.

    The compiled loop stops only where a profile begins and ends. If another profiler session is
    active, the hook skips the profile with a warning.

    Args:
      start_step: The number of completed steps at which the profile begins. The first steps include
        compilation.
      num_steps: The number of steps to profile.
      at_steps: Several start steps, which replace `start_step`.
      directory: The output directory, relative to the run's `model_dir` unless it is absolute.

    Raises:
      errors.ConfigValueError: A number is out of range, or two profiles overlap.
    """

    def __init__(
        self,
        start_step: int = 10,
        num_steps: int = 10,
        at_steps: Sequence[int] | None = None,
        directory: str = "profile",
    ) -> None:
        starts = sorted({start_step} if at_steps is None else set(at_steps))
        gaps = [after - before for before, after in itertools.pairwise(starts)]
        if num_steps < 1 or min(starts, default=0) < 0 or min(gaps, default=num_steps) < num_steps:
            raise errors.ConfigValueError(
                f"Profiler can't profile {num_steps} steps from each of {starts}. Expected at "
                "least one step, and start steps that are not negative and don't overlap."
            )
        self._starts = starts
        self._num_steps = num_steps
        self._directory = directory
        self._is_active = False

    def build_trigger(self) -> triggers.Trigger:
        return triggers.AtSteps([*self._starts, *self._stops()])

    def before_train(self) -> None:
        output_directory(self, self._directory)
        if any(start <= self.controller.step < start + self._num_steps for start in self._starts):
            self._start()

    def after_step(self) -> None:
        if self.controller.step in self._stops():
            self._stop()
        if self.controller.step in self._starts:
            self._start()

    def after_train(self, success: bool) -> None:
        self._stop()

    def _stops(self) -> list[int]:
        return [start + self._num_steps for start in self._starts]

    def _start(self) -> None:
        if self._is_active or not directories.is_chief(self.controller.strategy):
            return
        directory = output_directory(self, self._directory)
        try:
            tf.profiler.experimental.start(directory)
        except tf.errors.AlreadyExistsError:
            logging.warning(
                "Skipping the profile at step %d, because another profiler session is active.",
                self.controller.step,
            )
            return
        self._is_active = True
        logging.info("Profiling %d steps into %s.", self._num_steps, directory)

    def _stop(self) -> None:
        if not self._is_active:
            return
        self._is_active = False
        try:
            tf.profiler.experimental.stop()
        except tf.errors.UnavailableError:
            logging.warning(
                "The profiler was stopped by other code before step %d.", self.controller.step
            )
