"""Reports: pass the numbers of a run to summaries and writers."""

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.orbit import runner, triggers, utils
from official_lite.telemetry.writer import as_number

_SECONDS_BETWEEN_PROGRESS = 0.1


class Summaries:
    """Holds the summary managers of a run and controls `tf.summary` calls in its steps.

    Args:
        global_step: The TensorFlow variable that counts the steps. Summaries use it as their
            default step.
        interval: `tf.summary` calls inside the training step write at multiples of this number.
            `None` disables them.
        directory: The directory for training summaries. `None` writes none.
        eval_directory: The directory for evaluation summaries. Defaults to `directory`.
        manager: A summary manager that replaces `directory`.
        eval_manager: A summary manager that replaces `eval_directory`.
        job: The name of an evaluation-only job; see `telemetry.TensorBoardWriter`.

    Attributes:
        manager: The summary manager for training.
        eval_manager: The summary manager for evaluation.

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
        """Return the first step after `step` in which `tf.summary` calls write."""
        return self._trigger.next_step(step)

    @contextlib.contextmanager
    def of_steps(self) -> Iterator[None]:
        """Enter a context in which `tf.summary` calls of training steps write when they are due."""
        interval = self._interval
        record: Any = (lambda: self._global_step % interval == 0) if interval else False
        with (
            self.counting(),
            self.manager.summary_writer().as_default(),
            tf.summary.record_if(record),
        ):
            yield

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Enter a context in which `tf.summary` calls use the step of this run.

        TensorFlow keeps one default step per thread, which another controller may have set.
        """
        before = tf.summary.experimental.get_step()
        tf.summary.experimental.set_step(self._global_step)
        try:
            yield
        finally:
            tf.summary.experimental.set_step(before)

    def close(self) -> None:
        """Close the event files. Managers passed to the constructor stay open."""
        for manager in self._own_managers:
            manager.close()

    def _create_manager(self, directory: str | os.PathLike[str] | None) -> utils.SummaryManager:
        manager = utils.SummaryManager(
            directory, telemetry.scalar_summary, global_step=self._global_step, job=self._job
        )
        self._own_managers.append(manager)
        return manager


class LossWatch:
    """Advises the user once if the training loss stays at its first value.

    Possible causes are a loss that takes logits for probabilities, and a learning rate so high that
    one update has saturated the model; in both cases, gradients vanish. The loss is judged after
    the first epoch, if its length is known, or after 100 reports.
    """

    _MIN_REPORTS, _ENOUGH_REPORTS = 5, 100
    _TOLERANCE = 0.01

    def __init__(self) -> None:
        self._values: list[float] = []
        self._is_judged = False

    def note(self, loss: Any, *, step: int, steps_per_epoch: int | None) -> None:
        """Record the loss of a report if it is finite; warn once if the loss hardly changes."""
        value = as_number(loss)
        if self._is_judged or value is None or not math.isfinite(value):
            return
        self._values.append(value)
        count = len(self._values)
        is_epoch_over = steps_per_epoch is not None and step >= steps_per_epoch
        if count < self._MIN_REPORTS or not (is_epoch_over or count >= self._ENOUGH_REPORTS):
            return
        self._is_judged = True
        first = statistics.fmean(self._values[: count // 2])
        last = statistics.fmean(self._values[count // 2 :])
        if first and abs(last - first) <= self._TOLERANCE * abs(first):
            logging.warning(
                "The training loss has hardly changed since training began: it was %.6g in the "
                "first report and is %.6g at step %d. If it should have fallen by now, check "
                "whether the loss gets logits or probabilities (`from_logits`), the learning rate "
                "(`trainer.optimizer_config`), and which variables train (`trainer.freeze`). With "
                "`trainer.overfit_batches=1`, any model should reach a loss near its minimum.",
                self._values[0],
                value,
                step,
            )


class Reports:
    """Collects numbers as they are logged and passes records to the writers on request.

    Summaries are written immediately, because their managers read the current step themselves.

    Args:
        storage: The event storage. Each report includes the numbers logged to it since the previous
            report.
        writers: The writers that receive the records. If empty, records go to the log.
        summary_manager: The summary manager for training reports.
        eval_summary_manager: The summary manager for evaluation reports.
        eval_split: The split of evaluation reports.

    Attributes:
        train_logs: The last value of everything that training has reported.
        eval_logs: The results of the last evaluation.
    """

    def __init__(
        self,
        storage: telemetry.EventStorage,
        writers: Sequence[telemetry.Writer],
        summary_manager: utils.SummaryManagerInterface,
        eval_summary_manager: utils.SummaryManagerInterface,
        eval_split: str = "validation",
    ) -> None:
        self._storage = storage
        self._writer = telemetry.MultiWriter(writers or [telemetry.ConsoleWriter()])
        self._eval_split = eval_split
        self._summary_managers = {"train": summary_manager, eval_split: eval_summary_manager}
        self._records: list[telemetry.Record] = []
        self._next_progress = 0.0
        self.train_logs: runner.Output = {}
        self.eval_logs: runner.Output = {}
        # The steps at which `train_logs` and `eval_logs` were last reported.
        self._train_step = self._eval_step = 0

    def progress(self, step: int) -> None:
        """Tell the writers which step training has reached, at most ten times per second."""
        # Without this limit, a loop of single steps would update the terminal too often.
        if (now := time.monotonic()) >= self._next_progress:
            self._next_progress = now + _SECONDS_BETWEEN_PROGRESS
            self._writer.progress(step)

    def report_training(
        self, logs: runner.Output, *, step: int, total_steps: int, from_graphs: bool = True
    ) -> None:
        """Report a training interval, or with empty `logs` the numbers logged after the last one.

        Args:
            logs: NumPy and Python values by name. Values may be nested.
            step: The step at which the interval ended.
            total_steps: The step at which training ends.
            from_graphs: Whether to include numbers that graphs logged to the storage; see
                `EventStorage.take`.
        """
        events = self._storage.take(from_graphs)
        # The trainer's own values take precedence, because logged values of the same name may be
        # from an earlier step.
        logs = {**events.scalars, **logs}
        self.train_logs, self._train_step = {**self.train_logs, **logs}, step
        self._report(logs, "train", step, events, total_steps)

    def report_evaluation(self, logs: runner.Output, *, step: int) -> None:
        """Report an evaluation. The storage keeps its numbers for the next training report."""
        self.eval_logs, self._eval_step = logs, step
        self._report(logs, self._eval_split, step, telemetry.Events())

    def report_what_is_left(self, *, step: int) -> None:
        """Report the numbers logged during an evaluation outside of training."""
        events = self._storage.take()
        self._report(dict(events.scalars), self._eval_split, step, events)

    def write(self) -> None:
        """Pass the pending records to the writers and flush the writers.

        If a writer fails, the remaining records stay pending until the next call.
        """
        if not self._records:
            return
        while self._records:
            self._writer.write(self._records.pop(0))
        self._writer.flush()

    def before_save(self, *, step: int) -> Callable[[], None]:
        """Write everything that belongs to a state that is about to be saved.

        Returns:
            A function that makes the written data durable. Call it, in any thread, before the
            checkpoint is marked as complete.
        """
        self.write()
        for manager in self._managers():
            manager.mark_checkpoint(step)
        return self._sync

    def rewind(self, step: int) -> None:
        """Remove the records and the history after `step`, from which training resumes."""
        # Write the pending records first, so that the terminal shows them even if file writers
        # then remove them.
        self.write()
        # Discard the logs of later steps, so that hooks do not read, for example, a NaN loss.
        self._storage.rewind(step)
        if self._train_step > step:
            self.train_logs = {}
        if self._eval_step > step:
            self.eval_logs = {}
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
    """Return a copy of an output with tensors converted to NumPy values."""
    return tf.nest.map_structure(utils.get_value, output)
