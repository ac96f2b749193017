"""Reports of a run: from the event storage to the writers and event files."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from official_lite import telemetry
from official_lite.orbit import runner, triggers, utils


class Summaries:
    """The summary managers of a run, and the steps whose `tf.summary` calls are written.

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
        """Return the first step after `step` in which a training step writes."""
        return self._trigger.next_step(step)

    @contextlib.contextmanager
    def of_steps(self) -> Iterator[None]:
        """Enable `tf.summary` calls in the training steps that are due."""
        interval = self._interval
        record: Any = (lambda: self._global_step % interval == 0) if interval else False
        with self.manager.summary_writer().as_default(), tf.summary.record_if(record):
            yield

    def close(self) -> None:
        """Close the event files, except those of a manager that the caller created."""
        for manager in self._own_managers:
            manager.close()

    def _create_manager(self, directory: str | os.PathLike[str] | None) -> utils.SummaryManager:
        manager = utils.SummaryManager(
            directory, telemetry.scalar_summary, global_step=self._global_step, job=self._job
        )
        self._own_managers.append(manager)
        return manager


class Reports:
    """Collects values and passes records to the writers when asked to.

    Summaries are written at once, since their managers read the step by themselves.

    Args:
      storage: What came up in it since the report before is added to each report.
      writers: Take the records; the log, if there are none.
      summary_manager: For reports of training.
      eval_summary_manager: For reports of evaluations.

    Attributes:
      train_logs: The last value of everything that training has reported.
      eval_logs: The last evaluation.
    """

    def __init__(
        self,
        storage: telemetry.EventStorage,
        writers: Sequence[telemetry.Writer],
        summary_manager: utils.SummaryManagerInterface,
        eval_summary_manager: utils.SummaryManagerInterface,
    ) -> None:
        self._storage = storage
        self._writer = telemetry.MultiWriter(writers or [telemetry.ConsoleWriter()])
        self._summary_managers = {"train": summary_manager, "validation": eval_summary_manager}
        self._records: list[telemetry.Record] = []
        self.train_logs: runner.Output = {}
        self.eval_logs: runner.Output = {}

    def report_training(
        self, logs: runner.Output, *, step: int, total_steps: int, from_graphs: bool = True
    ) -> None:
        """Report an interval of training, or values recorded after the last one if `logs` is empty.

        Args:
          logs: NumPy and Python values by name, nested ones too.
          step: The step at which the interval ended.
          total_steps: The step at which training ends.
          from_graphs: Whether to take what graphs put into the storage; see `EventStorage.take`.
        """
        events = self._storage.take(from_graphs)
        # The trainer knows best: what was put in may be of an earlier step.
        logs = {**events.scalars, **logs}
        self.train_logs = {**self.train_logs, **logs}
        self._report(logs, "train", step, events, total_steps)

    def report_evaluation(self, logs: runner.Output, *, step: int) -> None:
        """Report an evaluation. Values in the storage wait for the next report of training."""
        self.eval_logs = logs
        self._report(logs, "validation", step, telemetry.Events())

    def report_what_is_left(self, *, step: int) -> None:
        """Report values that were recorded in an evaluation outside of training."""
        events = self._storage.take()
        self._report(dict(events.scalars), "validation", step, events)

    def write(self) -> None:
        """Pass the collected records to the writers, and flush them.

        If a writer fails, the records behind wait for the next call.
        """
        if not self._records:
            return
        while self._records:
            self._writer.write(self._records.pop(0))
        self._writer.flush()

    def before_save(self, *, step: int) -> Callable[[], None]:
        """Write everything that belongs to a state that is about to be saved.

        Returns:
          What makes it durable. Call it before the checkpoint counts, in any thread.
        """
        self.write()
        for manager in self._managers():
            manager.mark_checkpoint(step)
        return self._sync

    def rewind(self, step: int) -> None:
        """Have the writers remove the records after `step`, from which training starts again."""
        # What is waiting is shown on the terminal, whatever becomes of it in the files.
        self.write()
        self._writer.rewind(step)
        for manager in self._managers():
            manager.rewind(step)

    def _sync(self) -> None:
        self._writer.sync()
        for manager in self._managers():
            manager.sync()

    def _managers(self) -> Iterable[utils.SummaryManagerInterface]:
        return {id(manager): manager for manager in self._summary_managers.values()}.values()

    def _report(
        self,
        logs: runner.Output,
        split: str,
        step: int,
        events: telemetry.Events,
        total_steps: int | None = None,
    ) -> None:
        if not (logs or events.images or events.histograms):
            return
        summary_manager = self._summary_managers[split]
        summary_manager.write_summaries(logs)
        with summary_manager.summary_writer().as_default():
            telemetry.write_media(events, step=step)
        summary_manager.flush()
        self._records.append(
            telemetry.Record(
                step=step,
                split=split,
                values=telemetry.numbers(logs),
                images=events.images,
                histograms=events.histograms,
                total_steps=total_steps,
            )
        )


def as_numpy(output: runner.Output) -> runner.Output:
    """Return a copy of an output with NumPy values for tensors."""
    return tf.nest.map_structure(utils.get_value, output)
