"""The controller, which schedules training, evaluation and checkpoints, and its inner loop."""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.checkpoint import commit
from official_lite.common import error_report, errors, goodput, preemption, terminal
from official_lite.data import input_errors
from official_lite.orbit import checkpointing, reports, runner, standard_runner, triggers, utils
from official_lite.orbit.hooks.hook import Hook, HookList
from official_lite.orbit.utils import loop_fns

Action = Callable[[runner.Output], None]


@dataclasses.dataclass(kw_only=True)
class _Plan:
    """The schedule of a `train` or `train_and_evaluate` call, and the call's evaluation results."""

    last_step: int
    evaluate: triggers.Trigger = dataclasses.field(default_factory=triggers.Never)
    evaluate_at_end: bool = False
    eval_steps: int = -1
    save_at_end: bool = True
    evaluated_step: int | None = None
    eval_output: runner.Output | None = None


class Controller:
    """Runs a trainer, an evaluator, and everything scheduled between steps.

    The loop of `train_and_evaluate`, with every optional part::

        while step < last_step and no stop is requested:
            hooks.before_step
            trainer: the steps to the next event, at most `steps_per_loop`, in ONE compiled call
                (or slices of half a second, where a signal must be able to interrupt the call)
            hooks.after_step
            report, if due: trainer.train_loop_end, train actions
            evaluation, if due: evaluator, eval actions, hooks.after_eval
            hooks.after_epoch, if an epoch ends
            checkpoint, if due: writers, hooks.on_checkpoint
            writers

    The order matters:

    * Hooks run before the report, so the report includes the numbers that they log.
    * Train actions run before the checkpoint, so an action can restore an older checkpoint after
      the loss diverges, before the bad state is saved.
    * Evaluation runs before the checkpoint, so the best metric value is known when the checkpoint
      is saved.
    * Writers run last, so they see every record. Before a checkpoint is marked as complete, the
      writers also record all of its steps.

    All intervals count absolute steps. No interval has to divide another.

    The constructor restores the latest checkpoint of `checkpoint_manager`, if there is one.

    Code inside the step and hooks can log numbers to the event storage (`telemetry.put_scalar`).
    Each report includes the numbers logged since the previous report.

    Args:
        global_step: The TensorFlow or Keras variable that counts the steps. The trainer adds 1 to
            it in each step.
        trainer: The trainer. Required for training.
        evaluator: The evaluator. Required for evaluation.
        strategy: The strategy in whose scope checkpoints are saved and restored. Defaults to the
            current one.
        train_actions: Callables that receive the trainer's output at each report. If there are
            train actions, a report precedes each checkpoint, so the actions see every state before
            it is saved. If an action has a method `before_train`, it is called when training
            begins.
        eval_actions: Callables that receive the evaluator's output after each evaluation.
        steps_per_loop: The maximum number of steps in one call of the trainer, or a function that
            takes the step and returns this number. Required with a trainer.
        log_interval: The trainer reports at multiples of this number. Defaults to `steps_per_loop`.
        checkpoint_manager: Saves checkpoints at multiples of its `checkpoint_interval`. If the
            manager has no interval, only `save_checkpoint` saves.
        enable_async_checkpointing: Whether training continues while a checkpoint is being written.
            This requires an `AsyncCheckpointManager`; with any other manager, training waits.
        summary_interval: `tf.summary` calls inside the training step write at multiples of this
            number.
        summary_dir: The directory for TensorBoard summaries of training reports. `None` writes no
            summaries.
        eval_summary_dir: The directory for TensorBoard summaries of evaluations. Defaults to
            `summary_dir`.
        summary_manager: A summary manager that replaces `summary_dir`.
        eval_summary_manager: A summary manager that replaces `eval_summary_dir`.
        hooks: User-defined hooks that run in Python between steps, in this order.
        writers: Writers that receive a record of each report (split `train`) and each evaluation
            (split `eval_split`). The controller flushes the writers; the code that opened them
            closes them. Defaults to a writer to the log.
        steps_per_epoch: The number of steps after which `Hook.after_epoch` is called.
        model_dir: The directory in which hooks may write. Defaults to the directory of
            `checkpoint_manager`.
        restore: Whether the constructor restores a checkpoint. If false, call `restore_checkpoint`.
        eval_split: The name of the data that evaluations read. The `validation_loss` of another
            split is reported under the name of that split, such as `test_loss`.

    Attributes:
        storage: The event storage.
        first_step: The step at which the current or most recent training began.
        last_step: The step at which the current or most recent training ends.
        steps_per_epoch: The constructor argument.
        eval_preparations: Callables that run before each evaluation. Hooks may append to this list.
            A callable may return a function that undoes it, which is called if a stop signal ends
            the evaluation.
        eval_steps: The number of steps requested for the current or most recent evaluation; -1
            means all the data. Set it to the number that hooks use if they evaluate before that.
        stop_reason: The reason why the last run was requested to stop, or `None`. It is also set if
            the request came at the last step.
        is_interrupted: Whether a signal has ended the last run, which can be resumed.

    Raises:
        errors.ConfigValueError: An argument is missing or out of range.
        errors.ConfigTypeError: An element of `hooks` is not a hook, or is a graph hook that the
            trainer cannot run.
    """

    def __init__(
        self,
        *,
        global_step: Any,
        trainer: runner.AbstractTrainer | None = None,
        evaluator: runner.AbstractEvaluator | None = None,
        strategy: tf.distribute.Strategy | None = None,
        train_actions: Iterable[Action] | None = None,
        eval_actions: Iterable[Action] | None = None,
        steps_per_loop: int | Callable[[int], int] | None = None,
        checkpoint_manager: tf.train.CheckpointManager | None = None,
        enable_async_checkpointing: bool = False,
        summary_interval: int | None = None,
        summary_dir: str | os.PathLike[str] | None = None,
        eval_summary_dir: str | os.PathLike[str] | None = None,
        summary_manager: utils.SummaryManagerInterface | None = None,
        eval_summary_manager: utils.SummaryManagerInterface | None = None,
        hooks: Sequence[Hook] = (),
        writers: Sequence[telemetry.Writer] = (),
        steps_per_epoch: int | None = None,
        log_interval: int | None = None,
        model_dir: str | os.PathLike[str] | None = None,
        restore: bool = True,
        eval_split: str = "validation",
    ) -> None:
        if trainer is None and evaluator is None:
            raise errors.ConfigValueError(
                "`Controller` got neither a trainer nor an evaluator. Pass a `trainer`, an "
                "`evaluator` or both."
            )
        self.global_step = global_step
        self._tf_step = utils.as_tf_variable(global_step)
        self._iter = 0
        self.first_step = 0
        self.last_step = 0
        self._is_running = False
        self._evaluation_is_pending = False
        self._must_rewind = False
        # The output and logs of an interval that has ended and has not been reported yet, if any.
        self._ended_interval: tuple[runner.Output, runner.Output] | None = None
        self.stop_reason: str | None = None
        self.is_interrupted = False
        self._stop_request: str | None = None
        self.trainer = trainer
        self.evaluator = evaluator
        self.strategy = strategy or tf.distribute.get_strategy()
        self._stop_check = preemption.StopCheck(self.strategy)
        self.train_actions: Sequence[Action] = tuple(train_actions or ())
        self.eval_actions = tuple(eval_actions or ())
        self.checkpoint_manager = checkpoint_manager
        self._checkpoints = None
        if checkpoint_manager is not None:
            self._checkpoints = checkpointing.Checkpointing(
                checkpoint_manager,
                self.strategy,
                in_background=enable_async_checkpointing,
                on_save=self._prepare_save if trainer is not None else None,
            )
        if trainer is not None:
            self._inner = InnerLoop(trainer, global_step, steps_per_loop, log_interval)
        self.summary_interval = summary_interval
        self._summaries = reports.Summaries(
            self._tf_step,
            summary_interval,
            summary_dir,
            eval_summary_dir,
            summary_manager,
            eval_summary_manager,
            # Mark the event files of an evaluation job. A training job that shares the directory
            # then rewinds only its own files.
            job="eval" if trainer is None else "",
        )
        self.summary_manager = self._summaries.manager
        self.eval_summary_manager = self._summaries.eval_manager
        self.storage = (trainer and trainer.event_storage) or telemetry.EventStorage()
        if trainer is not None:
            trainer.event_storage = self.storage
            trainer._orbit_controller = self
        self._eval_split = eval_split
        self._reports = reports.Reports(
            self.storage, writers, self.summary_manager, self.eval_summary_manager, eval_split
        )
        self._loss_watch = reports.LossWatch()
        checkpoint_dir = self._checkpoints.directory if self._checkpoints else None
        self.model_dir = os.fspath(model_dir) if model_dir else checkpoint_dir
        self.eval_preparations: list[Callable[[], Callable[[], None] | None]] = []
        self.eval_steps = -1
        self.steps_per_epoch = steps_per_epoch
        self._hooks = HookList(hooks, steps_per_epoch)
        self._hooks.attach(self, trainer)
        if checkpoint_manager is not None:
            with_attributes = trainer is not None
            self._hooks.save_in(checkpoint_manager.checkpoint, with_attributes=with_attributes)
            if restore:
                self.restore_checkpoint()
        self._iter = self.step

    def train(self, steps: int, checkpoint_at_completion: bool = True) -> None:
        """Train until the global step reaches `steps`.

        Args:
            steps: The global step at which to end, not the number of steps to add.
            checkpoint_at_completion: Whether to save a checkpoint at the end, provided that the
                checkpoint manager has an interval.

        Raises:
            errors.DataError: The training data ended early.
            errors.PreemptedError: A signal requested a stop, and the state has been saved.
            RuntimeError: The trainer did not advance the global step.
        """
        self._train(_Plan(last_step=steps, save_at_end=checkpoint_at_completion))

    def train_and_evaluate(
        self, train_steps: int, eval_steps: int = -1, eval_interval: int | None = None
    ) -> runner.Output | None:
        """Train until the global step reaches `train_steps`; evaluate on the way and at the end.

        If there are no steps left to train, evaluate once.

        Args:
            train_steps: The global step at which to end.
            eval_steps: The number of steps in each evaluation; -1 means all the data.
            eval_interval: Evaluate at multiples of this number. By default, evaluate only at the
                end.

        Returns:
            The results of the last evaluation.
        """
        self._require("evaluator", for_method="train_and_evaluate")
        plan = _Plan(
            last_step=train_steps,
            evaluate=triggers.AnyOf([triggers.every(eval_interval), triggers.at_end(train_steps)]),
            evaluate_at_end=True,
            eval_steps=eval_steps,
        )
        self._train(plan)
        return plan.eval_output

    @goodput.measuring("evaluating")
    def evaluate(self, steps: int = -1) -> runner.Output | None:
        """Evaluate the current state once.

        Args:
            steps: The number of steps in the evaluation; -1 means all the data.

        Returns:
            The results, with tensors converted to NumPy values. If `steps` is positive, the results
            include `steps_per_second`.

        Raises:
            errors.ConfigValueError: There is no evaluator, or `steps` is neither -1 nor positive.
            errors.DataError: The evaluation data are empty.
        """
        evaluator = self._require("evaluator", for_method="evaluate")
        if steps < 1 and steps != -1:
            raise errors.ConfigValueError(
                f"`steps` must be a positive number, or -1 for all the data; got {steps}."
            )
        logging.info("Evaluating at step %d.", self.step, extra=terminal.DETAIL)
        self.eval_steps = steps
        undos: list[Callable[[], None]] = []
        try:
            for prepare in self.eval_preparations:
                undo = prepare()
                if callable(undo):
                    undos.append(undo)
            started = time.monotonic()
            with (
                self.storage.muted(),
                self._summaries.counting(),
                self.eval_summary_manager.summary_writer().as_default(),
                self._keeping_metrics(),
            ):
                output = dict(evaluator.evaluate(tf.constant(steps, tf.int32)) or {})
        except errors.PreemptedError:
            # The resumed run repeats the preparations, which have to begin with the same state.
            for undo in reversed(undos):
                undo()
            raise
        loss = f"{self._eval_split}_loss"
        if loss not in output:  # Do not overwrite a metric of the task that has this name.
            output = {loss if name == "validation_loss" else name: v for name, v in output.items()}
        logs = reports.as_numpy(output)
        if steps > 0:
            seconds = max(time.monotonic() - started, 1e-9)
            logs["steps_per_second"] = (evaluator.steps_run or steps) / seconds
        self._reports.report_evaluation(logs, step=self.step)
        self.storage.step = self.step
        try:
            with self.storage:
                for action in self.eval_actions:
                    action(output)
                self._hooks.after_eval(logs)
        finally:
            if not self._is_running:
                self._reports.report_what_is_left(step=self.step)
                self._reports.write()
        return logs

    def evaluate_continuously(
        self,
        steps: int = -1,
        timeout: float | None = None,
        timeout_fn: Callable[[], bool] | None = None,
    ) -> runner.Output | None:
        """Evaluate each checkpoint in the manager's directory once, in order, as it appears.

        The loop ends when no new checkpoint has appeared for `timeout` seconds, or after
        `request_stop`.

        Args:
            steps: The number of steps in each evaluation; -1 means all the data.
            timeout: The number of seconds to wait for the next checkpoint. `None` waits
                indefinitely.
            timeout_fn: Called after each timeout. If it returns false, the wait restarts.

        Returns:
            The results of the last evaluation; `None` if a stop was requested before the first one.

        Raises:
            errors.CheckpointError: No checkpoint appeared.
        """
        self._require("evaluator", for_method="evaluate_continuously")
        directory = self._required_checkpoints("evaluate_continuously").directory
        output = None
        paths = checkpointing.watch_checkpoints(
            directory, timeout, timeout_fn, should_stop=lambda: self._stop_request is not None
        )
        for path in paths:
            try:
                self.restore_checkpoint(path)
            except tf.errors.NotFoundError:
                logging.warning(
                    "Skipping %s, which was removed before it could be evaluated.", path
                )
                continue
            output = self.evaluate(steps)
            if self._stop_request is not None:
                break
        self._take_stop_request()
        if output is None and self.stop_reason is None:
            raise errors.CheckpointError(
                f"No checkpoint to evaluate appeared in {directory}. Check the directory, or "
                "increase `timeout`."
            )
        return output

    def restore_checkpoint(self, checkpoint_path: str | None = None) -> str | None:
        """Restore a checkpoint.

        If training follows, the writers first remove all records after the restored step, and hooks
        that keep the best checkpoint discard their results after that step.

        Args:
            checkpoint_path: The checkpoint to restore. Defaults to the manager's latest checkpoint.
                If there is none, the manager's `init_fn` is called.

        Returns:
            The path of the restored checkpoint, or `None` if there was none.

        Raises:
            errors.CheckpointError: The checkpoint is damaged or belongs to a different model.
        """
        checkpoints = self._required_checkpoints("restore_checkpoint")
        checkpoint_path = checkpoints.restore(checkpoint_path)
        self._must_rewind = True
        if not self._is_running:
            self._iter = self.step
        if checkpoint_path is not None:
            logging.info("Restored %s at step %d.", checkpoint_path, self.step)
            self._find_mark(checkpoint_path)
            if self.trainer is not None:
                self.trainer.after_restore()
        return checkpoint_path

    @goodput.measuring("saving")
    def save_checkpoint(self) -> str | None:
        """Save a checkpoint now, whether or not the manager has an interval.

        During training with `enable_async_checkpointing`, this method starts a save and returns. If
        the previous save is still in progress, the method waits for it first.

        Returns:
            The path, or `None` if this step has already been saved.
        """
        checkpoints = self._required_checkpoints("save_checkpoint")
        # Notify the hooks of the previous checkpoint before the new checkpoint can replace it on
        # disk.
        self._sync_on_async_checkpointing()
        path = checkpoints.save(self.step)
        if path is None:
            # This step is already saved. Record that its checkpoint contains all work so far.
            goodput.current().keep(self.step)
        if self._is_running:
            self._notify_of_checkpoint()
        else:
            self._sync_on_async_checkpointing()
        return path

    def request_stop(self, reason: str) -> None:
        """Stop training or continuous evaluation gracefully once the current work is done.

        When training stops this way, the final evaluation, the final checkpoint and
        `after_train(True)` still run. This method may be called from a hook, an action or another
        thread.

        Args:
            reason: Text for the log. It is available as `stop_reason` afterwards.
        """
        self._stop_request = reason

    @property
    def step(self) -> int:
        """Return the number of completed steps."""
        # `value` avoids the copy that `tf.Variable.numpy` makes.
        return int(self._tf_step.value().numpy())

    @property
    def iter(self) -> int:
        """Return the 0-based index of the current step; after success, the number of steps."""
        return self._iter

    def close(self) -> None:
        """Close the event files of `summary_dir` and `eval_summary_dir`."""
        self._summaries.close()

    def checkpoint_every(self, num_steps: int) -> None:
        """Save at multiples of `num_steps` in addition to the manager's interval, and at the end.

        Args:
            num_steps: The interval. Adding the same interval twice has no effect.
        """
        self._required_checkpoints("checkpoint_every").add_interval(num_steps)

    @property
    def train_logs(self) -> runner.Output:
        """Return the last value of everything that training has reported.

        Tensors are converted to NumPy values.
        """
        return self._reports.train_logs

    @property
    def eval_logs(self) -> runner.Output:
        """Return the results of the last evaluation."""
        return self._reports.eval_logs

    @property
    def train_seconds(self) -> float:
        """Return the seconds spent in the trainer so far, excluding the time between its calls."""
        return self._inner.seconds if self.trainer is not None else 0.0

    @property
    def steps_per_loop(self) -> int:
        """Return the maximum number of steps in a trainer call that begins at the current step."""
        self._require("trainer", for_method="steps_per_loop")
        return self._inner.length_at(self.step)

    @contextlib.contextmanager
    def step_context(self) -> Iterator[None]:
        """Enter the context in which steps run, so that steps can be run before training.

        A reporting interval begins here if none has begun; training continues this interval.
        """
        with self.storage, self._summaries.of_steps():
            self._inner.begin()
            yield

    def _keeping_metrics(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that preserves the trainer's metrics during an evaluation.

        It does nothing if no reporting interval is open or if the trainer is also the evaluator.
        """
        if self.trainer is None or self.trainer is self.evaluator or not self._inner.is_open:
            return contextlib.nullcontext()
        return self.trainer.keeping_metrics()

    def _required_checkpoints(self, for_method: str) -> checkpointing.Checkpointing:
        if self._checkpoints is None:
            raise missing("checkpoint_manager", for_method)
        return self._checkpoints

    def _train(self, plan: _Plan) -> None:
        self._require("trainer", for_method="train")
        with self._running(plan.last_step):
            with goodput.measuring("stepping"):
                if self._evaluation_is_pending:
                    self._catch_up(plan)
                while (step := self.step) < plan.last_step and self._stop_request is None:
                    self._stop_check.check()
                    stop = self._next_event(step, plan)
                    self._train_stretch(step, stop, plan)
                    self._fire_due_events(stop, plan)
            self._finish(plan)

    def _catch_up(self, plan: _Plan) -> None:
        """Run the evaluation and the epoch end that a signal prevented at the restored step."""
        if plan.evaluate_at_end:
            self._evaluate(plan)
        self._evaluation_is_pending = False
        self._hooks.after_epoch(self.step)
        if self._checkpoints is not None:
            # These events may have changed the state of hooks, so this step may be saved again.
            self._checkpoints.allow_repeated_save()

    def _next_event(self, step: int, plan: _Plan) -> int:
        """Return the first step after `step` at which an event (such as a save) may be due."""
        whens = (
            self._inner,
            self._hooks,
            self._summaries,
            plan.evaluate,
            self._checkpoints or triggers.Never(),
        )
        return int(min(plan.last_step, *(when.next_step(step) for when in whens)))

    def _train_stretch(self, start: int, stop: int, plan: _Plan) -> None:
        self._iter, self.storage.step = stop - 1, stop
        self._evaluation_is_pending = False
        self._hooks.before_steps(until=stop)
        with self._summaries.of_steps():
            for part in self._stop_check.slices(start, stop, self._inner.is_splittable):
                self._inner.run(*part)
                self._reports.progress(part[1])
        if self._is_report_due(stop, plan):
            self._end_interval()
        self._hooks.after_steps(stop)

    def _is_report_due(self, step: int, plan: _Plan) -> bool:
        # Report before each save if there are train actions. They run at each report, and may check
        # the state before it is saved.
        judges = bool(self.train_actions) and self._is_save_due(step)
        ends = step >= plan.last_step
        return ends or judges or plan.evaluate.is_due(step) or self._inner.is_report_due(step)

    def _is_save_due(self, step: int) -> bool:
        return self._checkpoints is not None and self._checkpoints.is_due(step)

    def _fire_due_events(self, step: int, plan: _Plan) -> None:
        evaluates, saves = plan.evaluate.is_due(step), self._is_save_due(step)
        if self._ended_interval is not None or self._is_report_due(step, plan):
            self._report()
            if self.step != step:  # An action has restored an older checkpoint.
                if self._evaluation_is_pending:
                    self._catch_up(plan)
                return
        if evaluates:
            self._evaluate(plan)
        self._hooks.after_epoch(step)
        if saves:
            self.save_checkpoint()
        self._notify_of_checkpoint()
        self._reports.write()

    def _finish(self, plan: _Plan) -> None:
        """Run the final report, evaluation and save; skip those already done at this step."""
        if self._has_interval():
            self._report()
            if self._evaluation_is_pending:  # An action has restored an older checkpoint.
                self._catch_up(plan)
        if plan.evaluate_at_end and plan.evaluated_step != self.step:
            self._evaluate(plan)
        if self._checkpoints is not None:
            if plan.save_at_end and self._checkpoints.has_intervals:
                self.save_checkpoint()
        self._sync_on_async_checkpointing()

    def _end_interval(self) -> tuple[runner.Output, runner.Output]:
        """End the reporting interval and record its values in the storage, where hooks find them.

        Returns:
            The trainer's report, and its values converted to NumPy, with `steps_per_second` added.
        """
        output = self._inner.report()
        logs = reports.as_numpy(output)
        logs["steps_per_second"] = self._inner.take_steps_per_second()
        self.storage.record_report(telemetry.numbers(logs))
        self._ended_interval = output, logs
        return self._ended_interval

    def _has_interval(self) -> bool:
        return self._inner.is_open or self._ended_interval is not None

    def _report(self) -> None:
        """Report the interval and run the actions; rewind if one restores an older checkpoint."""
        step = self.step
        output, logs = self._ended_interval or self._end_interval()
        self._ended_interval = None
        # Report before running the actions, because an action may restore an older step.
        self._report_training(logs)
        if self.first_step == 0:
            self._loss_watch.note(
                logs.get("training_loss"), step=self.step, steps_per_epoch=self.steps_per_epoch
            )
        for action in self.train_actions:
            action(output)
        if self.step != step:
            self._rewind()
            restored = self._checkpoints.restored if self._checkpoints else None
            if restored is not None and commit.step_of(restored) == self.step:
                self._find_mark(restored)

    def _report_training(self, logs: runner.Output, has_failed: bool = False) -> None:
        # Reading the values that graphs logged requires all workers. After a failure, the other
        # workers may still be training, so do not read these values in a cluster.
        is_alone = self.strategy.cluster_resolver is None
        self._reports.report_training(
            logs,
            step=self.step,
            total_steps=self.last_step,
            from_graphs=is_alone or not has_failed,
        )

    def _prepare_save(self) -> Callable[[], None]:
        """Prepare the evaluator and the writers for a save.

        Returns:
            A function that makes the written records durable; see
            `CommittedCheckpointManager.on_save`.
        """
        goodput.current().keep(self.step)
        self._notify_evaluator("before_checkpoint")
        return self._reports.before_save(step=self.step)

    def _rewind(self) -> None:
        """Remove all records of later steps before training continues from the current step."""
        self._must_rewind = False
        goodput.current().rewind(self.step)
        self._reports.rewind(self.step)
        self._notify_evaluator("before_training", self.step)

    def _find_mark(self, path: str) -> None:
        """Record whether the evaluation at the step of a restored checkpoint is still pending."""
        manager = self._require("checkpoint_manager", "restore_checkpoint")
        self._evaluation_mark = checkpointing.find_mark(manager.checkpoint, path)
        self._evaluation_is_pending = self._evaluation_mark is not None

    def _notify_evaluator(self, event: str, *args: Any) -> None:
        # An evaluator written for Orbit may have only an `evaluate` method.
        listen = getattr(self.evaluator, event, None)
        if listen is not None:
            with self.strategy.scope():
                listen(*args)

    def _write_what_is_left(self, has_failed: bool = False) -> None:
        """Write the numbers logged after the last report."""
        self._report_training({}, has_failed)
        self._reports.write()

    def _evaluate(self, plan: _Plan) -> None:
        plan.evaluated_step = self.step
        self._evaluation_is_pending = True
        plan.eval_output = self.evaluate(steps=plan.eval_steps)
        self._evaluation_is_pending = False

    @goodput.measuring("saving")
    def _sync_on_async_checkpointing(self) -> None:
        """Wait for a save in progress and notify the hooks of its checkpoint.

        Subclasses written for Orbit call this method.
        """
        if self._checkpoints is not None:
            self._checkpoints.wait()
            self._notify_of_checkpoint()

    def _notify_of_checkpoint(self) -> None:
        """Notify the hooks, on this thread, of a checkpoint that has become complete."""
        path = self._checkpoints.take_complete() if self._checkpoints else None
        if path is not None:
            logging.info("Saved %s.", path)
            self._notify_evaluator("after_checkpoint", commit.step_of(path))
            self._hooks.dispatch("on_checkpoint", path)

    @contextlib.contextmanager
    def _running(self, last_step: int) -> Iterator[None]:
        """Enter the context of a training run, and notify the hooks when it begins, ends or fails.

        After a stop signal, save the state before raising the error of the signal.
        """
        self._is_running = True
        self.last_step = last_step
        self.is_interrupted = False
        self.first_step = self._iter = self.storage.step = self.step
        stop: errors.PreemptedError | None = None
        with self.storage:
            try:
                preemption.rearm()
                if self._must_rewind:
                    self._rewind()
                logging.info("Training from step %d to step %d.", self.step, last_step)
                self._reports.progress(self.step)
                self._hooks.before_train()
                for action in self.train_actions:
                    getattr(action, "before_train", lambda: None)()
                try:
                    yield
                except errors.PreemptedError as error:
                    stop = error
                    self.is_interrupted = True
                    self._end_early()
                self._iter = self.step
                self._take_stop_request()
            except BaseException as error:
                reason = error_report.summary(error)
                logging.error(
                    "Training failed at step %d: %s",
                    self._last_known_step(),
                    reason,
                    extra=terminal.DETAIL,
                )
                self._inner.discard()
                self._ended_interval = None
                # Further errors are only logged, because the first error is raised.
                _attempt(self._sync_on_async_checkpointing)
                _attempt(self._hooks.dispatch, "on_exception", error)
                _attempt(self._hooks.dispatch, "after_train", False)
                _attempt(self._write_what_is_left, True)
                raise
            else:
                try:
                    self._hooks.dispatch("after_train", True)
                    self._sync_on_async_checkpointing()
                finally:
                    self._write_what_is_left()
                if stop is not None:
                    self._add_checkpoint_path(stop)
                    raise stop
            finally:
                self._is_running = False
                # Discard a stop request from `after_train`. It comes too late for this run and must
                # not stop the next run.
                self._stop_request = None

    def _last_known_step(self) -> int:
        try:
            return self.step
        except tf.errors.OpError:  # The process that holds the step variable may have ended.
            return self._iter

    def _end_early(self) -> None:
        """Save the state after a stop signal; skip the evaluation, because time may be short."""
        self.storage.step = self.step
        if self._has_interval():
            # The signal also interrupts an action that repeats steps to find a bad one. The action
            # then leaves a state that may be saved.
            with contextlib.suppress(errors.PreemptedError):
                self._report()
        if self._checkpoints is not None and self.step > self.first_step:
            self._save_last_state()
        logging.info("Stopped at step %d by a signal.", self.step)

    def _add_checkpoint_path(self, stop: errors.PreemptedError) -> None:
        """Add the path of the latest checkpoint to the error message, which the terminal shows."""
        manager = self.checkpoint_manager
        if manager is not None and manager.latest_checkpoint:
            stop.args = (f"{str(stop).removesuffix('.')}, from {manager.latest_checkpoint}.",)

    def _save_last_state(self) -> None:
        with contextlib.ExitStack() as stack:
            if self._evaluation_is_pending and self.checkpoint_manager is not None:
                stack.enter_context(checkpointing.marked(self.checkpoint_manager.checkpoint))
            self.save_checkpoint()
            self._sync_on_async_checkpointing()

    def _take_stop_request(self) -> None:
        self.stop_reason, self._stop_request = self._stop_request, None
        if self.stop_reason is not None:
            logging.info("Stopped at step %d: %s", self.step, self.stop_reason)

    def _require(self, attribute: str, for_method: str) -> Any:
        value = getattr(self, attribute)
        if value is None:
            raise missing(attribute, for_method)
        return value


def missing(argument: str, for_method: str) -> errors.ConfigValueError:
    """Build the error for a controller that lacks an argument that one of its methods needs."""
    hint = " In a run, only training modes have a trainer." if argument == "trainer" else ""
    return errors.ConfigValueError(
        f"`{for_method}` requires a `{argument}`. Pass one to `Controller`.{hint}"
    )


def _attempt(act: Callable[..., None], *args: Any) -> None:
    try:
        act(*args)
    except Exception:  # Only log this error, because the error that ended training is raised.
        logging.exception(
            "Another error occurred while training was shutting down after the first error."
        )


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
        steps_per_loop: The maximum number of steps in a stretch, or a function that takes the step
            at which the stretch begins and returns this number.
        log_interval: The length of a reporting interval. Defaults to `steps_per_loop` if `None` or
            0.

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
        self._tf_step = utils.as_tf_variable(global_step)
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
            # Reading the step variable waits for the device, so the measured time includes the
            # device's work.
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
                "trainer must not catch the error at the end of the data."
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
    """Return `count` as a tensor, cached because many calls of a trainer have the same length."""
    with tf.init_scope():
        return tf.constant(count, tf.int32)
