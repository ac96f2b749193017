"""Runs the trainer on behalf of the controller: stretches of steps, grouped into reports."""

import functools
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_lite.common import errors
from official_lite.data import input_errors
from official_lite.orbit import runner, standard_runner, triggers
from official_lite.orbit.utils import common, loop_fns


class InnerLoop:
    """Runs stretches of steps and groups them into reporting intervals.

    A reporting interval lies between a trainer's `train_loop_begin` and `train_loop_end`. It ends
    at the next multiple of `log_interval`, or earlier if `report` is called. A trainer whose
    interval cannot be split reports after every stretch.

    Attributes:
      is_open: Whether a step of an interval has run, and the interval has not ended.
      is_splittable: Whether a stretch may run in several parts. This is false if the trainer
        overrides `train`.
      seconds: The total seconds spent in the trainer's calls.

    Args:
      trainer: The trainer that runs the steps.
      global_step: The variable that counts the steps.
      steps_per_loop: The maximum number of steps in a stretch, or a function that takes the step at
        which the stretch begins and returns this number.
      log_interval: The length of a reporting interval. Defaults to `steps_per_loop` if `None` or 0.

    Raises:
      errors.ConfigValueError: `steps_per_loop` is neither a positive integer nor a function, or
        `log_interval` is negative.
    """

    def __init__(
        self,
        trainer: runner.AbstractTrainer,
        global_step: Any,
        steps_per_loop: int | Callable[[int], int] | None,
        log_interval: int | None = None,
    ) -> None:
        is_length = isinstance(steps_per_loop, int) and steps_per_loop >= 1
        if steps_per_loop is None or not (callable(steps_per_loop) or is_length):
            raise errors.ConfigValueError(
                f"`steps_per_loop` is {steps_per_loop}; with a trainer it must be a positive "
                "integer, or a function of the step that returns one."
            )
        self._trainer = trainer
        self.is_splittable = standard_runner.is_splittable(trainer)
        self._global_step = global_step
        self._tf_step = common.as_tf_variable(global_step)
        self._steps_per_loop = steps_per_loop
        self._log_trigger = triggers.every(log_interval) if log_interval else None
        self._output: runner.Output | None = None
        self._interval_end: triggers.Trigger = triggers.Never()
        self._steps = 0
        self._seconds = 0.0
        self.seconds = 0.0
        self.is_open = False
        self._has_begun = False

    def next_step(self, step: int) -> float:
        """Return the step at which a stretch from `step` must end.

        A stretch never extends past the end of its reporting interval.
        """
        if not self.is_open:
            self._interval_end = self._next_interval_end(step)
        interval_end = self._interval_end.next_step(step)
        if self._log_trigger is None:
            return interval_end
        return min(interval_end, step + self.length_at(step))

    def is_report_due(self, step: int) -> bool:
        """Return whether the current interval must end at `step`."""
        return self.is_open and (not self.is_splittable or self._interval_end.is_due(step))

    def begin(self) -> None:
        """Call the trainer's `train_loop_begin` before the first step of an interval, once."""
        if self.is_splittable and not self._has_begun:
            self._trainer.train_loop_begin()
            self._has_begun = True

    def run(self, start: int, stop: int) -> None:
        """Train from the current step, `start`, to step `stop` in one call of the trainer.

        Raises:
          errors.DataError: The training data ended or are not usable.
          RuntimeError: The global step is not `stop` afterwards.
        """
        started = time.monotonic()
        try:
            self._call_trainer(_num_steps(stop - start))
            # Reading the step waits for the device, so it belongs to the time.
            reached = int(self._tf_step.value().numpy())
        except loop_fns.END_OF_DATA as error:
            raise standard_runner.end_of_training_data(self._global_step) from error
        except tf.errors.OpError as error:
            input_errors.raise_if_of_data(error, self._tf_step)
            raise
        finally:
            seconds = time.monotonic() - started
            self.seconds += seconds
            self._seconds += seconds
        self._steps += stop - start
        if reached != stop:
            raise RuntimeError(
                f"{type(self._trainer).__name__} should have trained from step {start} to step "
                f"{stop}, but `global_step` is {reached}. Each step must add 1 to it, even if "
                "loss scaling skips the update (see `orbit.utils.create_global_step`), and the "
                "trainer must not suppress the end of the data."
            )

    def report(self) -> runner.Output:
        """End the interval and return the trainer's output for it."""
        if self.is_splittable:
            self._output = self._trainer.train_loop_end()
        self.is_open = self._has_begun = False
        return dict(self._output or {})

    def discard(self) -> None:
        """Discard the current interval after an error in it."""
        self.is_open = self._has_begun = False
        self._steps, self._seconds = 0, 0.0

    def take_steps_per_second(self) -> float:
        """Return the trainer's steps per second since the last call of this method.

        Time between the trainer's calls (hooks, evaluation, checkpoints) is not counted.
        """
        rate = self._steps / max(self._seconds, 1e-9)
        self._steps, self._seconds = 0, 0.0
        return rate

    def length_at(self, step: int) -> int:
        """Return the maximum number of steps in a stretch that begins at `step`.

        Raises:
          errors.ConfigValueError: The `steps_per_loop` function returned less than 1.
        """
        if not callable(self._steps_per_loop):
            return self._steps_per_loop
        length = self._steps_per_loop(step)
        if length < 1:
            raise errors.ConfigValueError(
                f"`steps_per_loop` returned {length} for step {step}; it must be at least 1."
            )
        return length

    def _call_trainer(self, num_steps: tf.Tensor) -> None:
        if not self.is_splittable:
            self._output = self._trainer.train(num_steps)
        else:
            self.begin()
            self._trainer.run_steps(num_steps)
        self.is_open = True

    def _next_interval_end(self, step: int) -> triggers.Trigger:
        if self._log_trigger is not None:
            return self._log_trigger
        if callable(self._steps_per_loop):
            return triggers.AtSteps([step + self.length_at(step)])
        return triggers.EverySteps(self._steps_per_loop)


@functools.lru_cache(maxsize=64)
def _num_steps(count: int) -> tf.Tensor:
    """Return `count` as a tensor, cached because hooks may cut the loop into equal stretches."""
    with tf.init_scope():
        return tf.constant(count, tf.int32)
