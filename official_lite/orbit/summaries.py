"""The event files of a run, and when the steps themselves write into them."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from official_lite import telemetry
from official_lite.orbit import triggers, utils


class Summaries:
    """Has the managers of a run's summaries, and lets `tf.summary` calls in its steps write.

    Args:
      global_step: The TensorFlow variable that counts the steps; summaries bear it by default.
      interval: The steps in which `tf.summary` calls inside the training step write; `None` is
        never.
      directory: Where the summaries of training go; `None` is nowhere.
      eval_directory: The same for evaluations; by default `directory`.
      manager: Takes the place of `directory`.
      eval_manager: Takes the place of `eval_directory`.
      job: The name of a job that only evaluates; see `telemetry.TensorBoardWriter`.

    Attributes:
      manager: For training.
      eval_manager: For evaluations.

    Raises:
      errors.ConfigValueError: `interval` is negative.
    """

    def __init__(
        self,
        global_step: tf.Variable,
        interval: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        eval_directory: str | os.PathLike[str] | None = None,
        manager: utils.SummaryManagerInterface | None = None,
        eval_manager: utils.SummaryManagerInterface | None = None,
        job: str = "",
    ) -> None:
        self._global_step = global_step
        self._interval = interval
        self._job = job
        self._trigger = triggers.every(interval)
        tf.summary.experimental.set_step(global_step)
        self._own_managers: list[utils.SummaryManager] = []
        self.manager = manager or self._create_manager(directory)
        is_shared = eval_directory is None or eval_directory == directory
        self.eval_manager = eval_manager or (
            self.manager if is_shared else self._create_manager(eval_directory)
        )

    def next_step(self, step: int) -> float:
        """The first step after `step` in which a training step writes."""
        return self._trigger.next_step(step)

    @contextlib.contextmanager
    def of_steps(self) -> Iterator[None]:
        """Within it, `tf.summary` calls of training steps write, in those that are due."""
        interval = self._interval
        record: Any = (lambda: self._global_step % interval == 0) if interval else False
        with self.manager.summary_writer().as_default(), tf.summary.record_if(record):
            yield

    def close(self) -> None:
        """Closes the event files; a manager that was given is left to whoever made it."""
        for manager in self._own_managers:
            manager.close()

    def _create_manager(self, directory: str | os.PathLike[str] | None) -> utils.SummaryManager:
        manager = utils.SummaryManager(
            directory, telemetry.scalar_summary, global_step=self._global_step, job=self._job
        )
        self._own_managers.append(manager)
        return manager
