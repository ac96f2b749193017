"""The outer loop of training: *when* things happen."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.checkpoint import commit
from official_lite.common import error_report, errors
from official_lite.orbit import checkpointing, inner_loop, reports, runner, triggers, utils
from official_lite.orbit.hooks import hook_list
from official_lite.run import preemption

Action = Callable[[runner.Output], None]


@dataclasses.dataclass(kw_only=True)
class _Plan:
    """One training run: where it ends, what happens on the way, and what came of it."""

    last_step: int
    evaluate: triggers.Trigger = dataclasses.field(default_factory=triggers.Never)
    evaluate_at_end: bool = False
    eval_steps: int = -1
    save_at_end: bool = True
    evaluated_step: int | None = None
    eval_output: runner.Output | None = None


class OuterLoop:
    """How a controller trains: its inner loop in stretches, and between them what is due.

    `Controller` says what comes after what, and why; it brings the parts that are declared here,
    and knows how to evaluate and to save.

    Args:
      global_step: The variable that counts the steps, of TensorFlow or of Keras.
    """

    strategy: tf.distribute.Strategy
    evaluator: runner.AbstractEvaluator | None
    train_actions: Sequence[Action]
    checkpoint_manager: tf.train.CheckpointManager | None
    storage: telemetry.EventStorage
    _inner: inner_loop.InnerLoop
    _hooks: hook_list.HookList
    _summaries: reports.Summaries
    _checkpoints: checkpointing.Checkpointing | None
    _reports: reports.Reports
    _stop_check: preemption.StopCheck

    def __init__(self, global_step: Any) -> None:
        self.global_step = global_step
        self._tf_step = utils.as_tf_variable(global_step)
        self._iter = 0
        self.first_step = 0
        self.last_step = 0
        self._is_running = False
        self._evaluation_is_pending = False
        self._must_rewind = False
        self.stop_reason: str | None = None
        self._stop_request: str | None = None

    def train(self, steps: int, checkpoint_at_completion: bool = True) -> None:
        """Trains until the global step is `steps`.

        Args:
          steps: The global step at which to end, not the number of steps to add.
          checkpoint_at_completion: Whether to save at the end, if the checkpoint manager has an
            interval at all.

        Raises:
          errors.DataError: The training data ended before.
          errors.PreemptedError: A signal has asked to stop, and all is saved.
          RuntimeError: The trainer did not advance the global step.
        """
        self._train(_Plan(last_step=steps, save_at_end=checkpoint_at_completion))

    def train_and_evaluate(
        self, train_steps: int, eval_steps: int = -1, eval_interval: int | None = None
    ) -> runner.Output | None:
        """Trains until the global step is `train_steps`, evaluates on the way and at the end.

        A run that has nothing left to train is evaluated once.

        Args:
          train_steps: The global step at which to end.
          eval_steps: Steps of each evaluation; -1 is all the data.
          eval_interval: Evaluates at the multiples of this number; by default only at the end.

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

    def evaluate(self, steps: int = -1) -> runner.Output | None:
        """Evaluates the current state once; a controller knows how."""
        # Not abstract: one's own controller may have another metaclass.
        raise NotImplementedError

    def save_checkpoint(self) -> str | None:
        """Saves now; a controller knows how."""
        # Not abstract: one's own controller may have another metaclass.
        raise NotImplementedError

    def request_stop(self, reason: str) -> None:
        """Ends training, or continuous evaluation, after what is being done now.

        It is an orderly end: final evaluation, checkpoint and `after_train(True)` follow. May be
        called from a hook, an action, or another thread.

        Args:
          reason: For the log, and for `stop_reason` afterwards.
        """
        self._stop_request = reason

    @property
    def step(self) -> int:
        """The number of steps completed."""
        # `value` makes no copy first, as `numpy` by itself does.
        return int(self._tf_step.value().numpy())

    @property
    def iter(self) -> int:
        """The 0-based number of the step under way or just ended; the last step after success."""
        return self._iter

    def _train(self, plan: _Plan) -> None:
        self._require("trainer", for_method="train")
        with self._running(plan.last_step):
            if self._evaluation_is_pending and plan.evaluate.is_due(self.step):
                self._evaluate(plan)
                self._hooks.after_epoch(self.step)
            while (step := self.step) < plan.last_step and self._stop_request is None:
                self._stop_check.check()
                stop = self._next_event(step, plan)
                self._train_stretch(step, stop)
                self._fire_due_events(stop, plan)
            self._finish(plan)

    def _next_event(self, step: int, plan: _Plan) -> int:
        """The first step after `step` at which something may be due."""
        whens = (
            self._inner,
            self._hooks,
            self._summaries,
            plan.evaluate,
            self._checkpoints or triggers.Never(),
        )
        return int(min(plan.last_step, *(when.next_step(step) for when in whens)))

    def _train_stretch(self, start: int, stop: int) -> None:
        self._iter, self.storage.step = stop - 1, stop
        self._hooks.before_steps(until=stop)
        with self._summaries.of_steps():
            for part in self._stop_check.slices(start, stop, self._inner.is_splittable):
                self._inner.run(*part)
        self._hooks.after_steps(stop)

    def _fire_due_events(self, step: int, plan: _Plan) -> None:
        evaluates = plan.evaluate.is_due(step)
        ends = step >= plan.last_step
        # Actions judge a state before it is saved, and they are called with a report.
        saves = self._checkpoints is not None and self._checkpoints.is_due(step)
        judges = saves and bool(self.train_actions)
        if evaluates or ends or judges or self._inner.is_report_due(step):
            self._report()
            if self.step != step:  # An action has restored an older checkpoint.
                self._rewind()
                return
        if evaluates:
            self._evaluate(plan)
        self._hooks.after_epoch(step)
        if saves:
            self.save_checkpoint()
        self._tell_of_checkpoint()
        self._reports.write()

    def _finish(self, plan: _Plan) -> None:
        """Brings what the end needs and the last events did not, as after a requested stop."""
        if self._inner.is_open:
            self._report()
        if plan.evaluate_at_end and plan.evaluated_step != self.step:
            self._evaluate(plan)
        if self._checkpoints is not None:
            if plan.save_at_end and self._checkpoints.has_intervals:
                self.save_checkpoint()
        self._sync_on_async_checkpointing()

    def _report(self) -> None:
        output = self._inner.report()
        logs = reports.as_numpy(output)
        logs["steps_per_second"] = self._inner.take_steps_per_second()
        # Before the actions, one of which may move the step.
        self._report_training(logs)
        for action in self.train_actions:
            action(output)

    def _report_training(self, logs: runner.Output, has_failed: bool = False) -> None:
        # What graphs put in is summed over all workers; the others may not have failed.
        is_alone = getattr(self.strategy, "cluster_resolver", None) is None
        self._reports.report_training(
            logs,
            step=self.step,
            total_steps=self.last_step,
            from_graphs=is_alone or not has_failed,
        )

    def _prepare_save(self) -> Callable[[], None]:
        """Has all that belongs to the state in hand; see `CommittedCheckpointManager.on_save`."""
        self._tell_evaluator("before_checkpoint")
        return self._reports.before_save(step=self.step)

    def _rewind(self) -> None:
        """Removes what a training that was broken off has left after the current step."""
        self._must_rewind = False
        self._reports.rewind(self.step)
        self._tell_evaluator("before_training", self.step)

    def _tell_evaluator(self, event: str, *args: Any) -> None:
        # One that was written for Orbit may have nothing but `evaluate`.
        listen = getattr(self.evaluator, event, None)
        if listen is not None:
            with self.strategy.scope():
                listen(*args)

    def _write_what_is_left(self, has_failed: bool = False) -> None:
        """Writes numbers that came up after the last report."""
        self._report_training({}, has_failed)
        self._reports.write()

    def _evaluate(self, plan: _Plan) -> None:
        plan.evaluated_step = self.step
        self._evaluation_is_pending = True
        plan.eval_output = self.evaluate(steps=plan.eval_steps)
        self._evaluation_is_pending = False

    def _sync_on_async_checkpointing(self) -> None:
        """Waits for a save that is under way; subclasses written for Orbit call it."""
        if self._checkpoints is not None:
            self._checkpoints.wait()
            self._tell_of_checkpoint()

    def _tell_of_checkpoint(self) -> None:
        """Tells the hooks of a checkpoint that has become complete, on this thread."""
        path = self._checkpoints.take_complete() if self._checkpoints else None
        if path is not None:
            logging.info("Saved %s.", path)
            self._tell_evaluator("after_checkpoint", commit.step_of(path))
            self._hooks.tell("on_checkpoint", path)

    @contextlib.contextmanager
    def _running(self, last_step: int) -> Iterator[None]:
        """Tells the hooks of the beginning and, whatever happens, of the end."""
        self._is_running = True
        self.last_step = last_step
        self.first_step = self._iter = self.storage.step = self.step
        stop: errors.PreemptedError | None = None
        with self.storage:
            try:
                preemption.rearm()
                if self._must_rewind:
                    self._rewind()
                logging.info("Training from step %d to step %d.", self.step, last_step)
                self._hooks.tell("before_train")
                try:
                    yield
                except errors.PreemptedError as error:
                    stop = error
                    self._end_early()
                self._iter = self.step
                self._take_stop_request()
            except BaseException as error:
                reason = error_report.summary(error)
                logging.error("Training failed at step %d: %s", self._last_known_step(), reason)
                self._inner.discard()
                # What fails from here on is logged: the first error is the one to raise.
                _attempt(self._sync_on_async_checkpointing)
                _attempt(self._hooks.tell, "on_exception", error)
                _attempt(self._hooks.tell, "after_train", False)
                _attempt(self._write_what_is_left, True)
                raise
            else:
                try:
                    self._hooks.tell("after_train", True)
                    self._sync_on_async_checkpointing()
                finally:
                    self._write_what_is_left()
                if stop is not None:
                    self._say_what_is_saved(stop)
                    raise stop
            finally:
                self._is_running = False
                # One that came too late, from `after_train`, is not for the next run.
                self._stop_request = None

    def _last_known_step(self) -> int:
        try:
            return self.step
        except tf.errors.OpError:  # The process that holds the variable may have gone.
            return self._iter

    def _end_early(self) -> None:
        """Saves what has been trained, without an evaluation: there may be little time."""
        self.storage.step = self.step
        if self._inner.is_open:
            self._report()
        if self._checkpoints is not None and self.step > self.first_step:
            self._save_the_end()
        logging.info("Stopped at step %d, by a signal.", self.step)

    def _say_what_is_saved(self, stop: errors.PreemptedError) -> None:
        """In the error itself, which is the last that a terminal shows."""
        manager = self.checkpoint_manager
        if manager is not None and manager.latest_checkpoint:
            stop.args = (f"{str(stop).removesuffix('.')}, from {manager.latest_checkpoint}.",)

    def _save_the_end(self) -> None:
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
    """That a controller lacks what one of its methods needs."""
    return errors.ConfigValueError(
        f"`{for_method}` needs a `{argument}`; pass one to `Controller`."
    )


def _attempt(act: Callable[..., None], *args: Any) -> None:
    try:
        act(*args)
    except Exception:  # Anything at all: the error that ended the training must come through.
        logging.exception("This failed as well.")
