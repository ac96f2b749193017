"""The controller: training, evaluation and checkpoints of a run, and what belongs to each."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.common import errors
from official_lite.orbit import checkpointing, inner_loop, outer_loop, reports, runner, utils
from official_lite.orbit.hooks import hook_list
from official_lite.orbit.hooks.hook import Hook
from official_lite.run import preemption

Action = outer_loop.Action


class Controller(outer_loop.OuterLoop):
    """Runs a trainer, an evaluator, and whatever is to happen between steps.

    The loop, with everything that `train_and_evaluate` adds::

        while step < last_step and no stop is requested:
            hooks.before_step
            trainer: the steps to the next event, at most `steps_per_loop`, in ONE compiled call (or
                slices of half a second, where signals are to stop it)
            hooks.after_step
            report, if due: trainer.train_loop_end, train actions
            evaluation, if due: evaluator, eval actions, hooks.after_eval
            hooks.after_epoch, if an epoch ends
            checkpoint, if due: writers, hooks.on_checkpoint
            writers

    The order is this because a hook may put numbers where the report finds them; an action may
    restore an older checkpoint when the loss blew up, before the bad state is saved; what is
    found best is known when the checkpoint is saved; and writers come last to see it all, but never
    after a checkpoint counts whose steps they have yet to record. All intervals count in absolute
    steps, and none has to divide another.

    Construction restores the newest checkpoint of `checkpoint_manager`, if there is one.

    Code anywhere in the step, and hooks, may put numbers into the event storage
    (`telemetry.put_scalar`); each report has what came up since the one before.

    Args:
      global_step: The variable that counts the steps, of TensorFlow or of Keras; the trainer adds
        1 to it in each step.
      trainer: Needed to train.
      evaluator: Needed to evaluate.
      strategy: The scope in which checkpoints are restored; by default the current one.
      train_actions: Called with the output of the trainer at each report. With actions there is a
        report before each checkpoint, so that no state is saved that they have not seen.
      eval_actions: Called with the output of the evaluator after each evaluation.
      steps_per_loop: The most steps in one call of the trainer, or a function that takes the step
        and returns a number of steps. Needed with a trainer.
      log_interval: The trainer reports at the multiples of it; by default at those of
        `steps_per_loop`.
      checkpoint_manager: Saves at the multiples of its `checkpoint_interval`. Without an interval
        only `save_checkpoint` saves.
      enable_async_checkpointing: Whether training goes on while a checkpoint is being written.
        The manager has to be an `AsyncCheckpointManager`; with another one training waits.
      summary_interval: The steps in which `tf.summary` calls inside the training step write.
      summary_dir: Where reports go as TensorBoard summaries; `None` is nowhere.
      eval_summary_dir: The same for evaluations; by default `summary_dir`.
      summary_manager: Takes the place of `summary_dir`.
      eval_summary_manager: Takes the place of `eval_summary_dir`.
      hooks: Python of the user's own between steps, run in this order.
      writers: Take a record of each report (split `train`) and each evaluation (`validation`).
        They are flushed, and closed by whoever opened them. By default the log.
      steps_per_epoch: What an epoch is to `Hook.after_epoch`.
      model_dir: Where hooks may write; by default the directory of `checkpoint_manager`.
      restore: Whether to restore now; if not, call `restore_checkpoint`.

    Attributes:
      storage: The event storage.
      first_step: The step at which the current training began, or the last one.
      last_step: Where the training ends that is under way, or was last.
      steps_per_epoch: As given.
      eval_preparations: Called before each evaluation; a hook may add to it.
      eval_steps: The steps that it was asked for; -1 is all the data.
      stop_reason: Why the last run was asked to end, if it was, even if at its last step.

    Raises:
      errors.ConfigValueError: An argument is missing or out of range.
      errors.ConfigTypeError: A hook is none, or a graph hook that the trainer can't run.
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
    ) -> None:
        if trainer is None and evaluator is None:
            raise errors.ConfigValueError("Pass a `trainer`, an `evaluator` or both.")
        super().__init__(global_step)
        self.trainer = trainer
        self.evaluator = evaluator
        self.strategy = strategy or tf.distribute.get_strategy()
        self._stop_check = preemption.StopCheck(self.strategy)
        self.train_actions = tuple(train_actions or ())
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
            self._inner = inner_loop.InnerLoop(trainer, global_step, steps_per_loop, log_interval)
        self.summary_interval = summary_interval
        self._summaries = reports.Summaries(
            self._tf_step,
            summary_interval,
            summary_dir,
            eval_summary_dir,
            summary_manager,
            eval_summary_manager,
            # It may look at the directory of a training, which rewinds its own event files.
            job="eval" if trainer is None else "",
        )
        self.summary_manager = self._summaries.manager
        self.eval_summary_manager = self._summaries.eval_manager
        self.storage = getattr(trainer, "event_storage", None) or telemetry.EventStorage()
        if trainer is not None:
            trainer.event_storage = self.storage
            trainer._orbit_controller = self
        self._reports = reports.Reports(
            self.storage, writers, self.summary_manager, self.eval_summary_manager
        )
        checkpoint_dir = self._checkpoints.directory if self._checkpoints else None
        self.model_dir = os.fspath(model_dir) if model_dir else checkpoint_dir
        self.eval_preparations: list[Callable[[], None]] = []
        self.eval_steps = -1
        self.steps_per_epoch = steps_per_epoch
        self._hooks = hook_list.HookList(hooks, steps_per_epoch)
        self._hooks.attach(self, trainer)
        if checkpoint_manager is not None:
            self._hooks.save_in(checkpoint_manager.checkpoint)
            if restore:
                self.restore_checkpoint()
        self._iter = self.step

    def evaluate(self, steps: int = -1) -> runner.Output | None:
        """Evaluates the current state once.

        Args:
          steps: Steps of the evaluation; -1 is all the data.

        Returns:
          The results, with NumPy values for tensors, and `steps_per_second` if `steps` was given.

        Raises:
          errors.ConfigValueError: There is no evaluator, or `steps` is neither -1 nor positive.
          errors.DataError: There are no data to evaluate.
        """
        evaluator = self._require("evaluator", for_method="evaluate")
        if steps < 1 and steps != -1:
            raise errors.ConfigValueError(f"`steps` is {steps}; give a positive number, or -1.")
        logging.info("Evaluating at step %d.", self.step)
        self.eval_steps = steps
        for prepare in self.eval_preparations:
            prepare()
        started = time.monotonic()
        with self.storage.muted(), self.eval_summary_manager.summary_writer().as_default():
            output = dict(evaluator.evaluate(tf.constant(steps, tf.int32)) or {})
        logs = reports.as_numpy(output)
        if steps > 0:
            seconds = max(time.monotonic() - started, 1e-9)
            logs["steps_per_second"] = (evaluator.steps_run or steps) / seconds
        self._reports.report_evaluation(logs, step=self.step)
        try:
            for action in self.eval_actions:
                action(output)
            self._hooks.tell("after_eval", logs)
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
        """Evaluates each checkpoint of the manager's directory once, as they appear, in order.

        It ends when no new one has come for `timeout` seconds, or on `request_stop`.

        Args:
          steps: Steps of each evaluation; -1 is all the data.
          timeout: Seconds to wait for the next checkpoint; `None` waits for ever.
          timeout_fn: Called after a timeout; if it returns false, the wait begins anew.

        Returns:
          The results of the last evaluation.

        Raises:
          errors.CheckpointError: There was no checkpoint at all.
        """
        self._require("evaluator", for_method="evaluate_continuously")
        directory = self._required_checkpoints("evaluate_continuously").directory
        output = None
        for path in checkpointing.watch_checkpoints(directory, timeout, timeout_fn):
            try:
                self.restore_checkpoint(path)
            except tf.errors.NotFoundError:
                logging.warning("%s was removed before it was evaluated.", path)
                continue
            output = self.evaluate(steps)
            if self._stop_request is not None:
                break
        self._take_stop_request()
        if output is None:
            raise errors.CheckpointError(f"No checkpoint to evaluate appeared in {directory}.")
        return output

    def restore_checkpoint(self, checkpoint_path: str | None = None) -> str | None:
        """Restores a checkpoint.

        A training that starts afterwards has the writers remove the records after its step, and
        whoever keeps the best checkpoint forget what came later.

        Args:
          checkpoint_path: Which one; by default the newest of the manager. If there is none, the
            manager's `init_fn` is called.

        Returns:
          The path of the restored checkpoint; `None` if there was none.

        Raises:
          errors.CheckpointError: It is damaged, or of another model.
        """
        checkpoints = self._required_checkpoints("restore_checkpoint")
        checkpoint_path = checkpoints.restore(checkpoint_path)
        self._must_rewind = True
        if checkpoint_path is not None:
            logging.info("Restored %s at step %d.", checkpoint_path, self.step)
            self._evaluation_mark = checkpointing.find_mark(
                self._require("checkpoint_manager", "restore_checkpoint").checkpoint,
                checkpoint_path,
            )
            self._evaluation_is_pending = self._evaluation_mark is not None
            if self.trainer is not None:
                self.trainer.after_restore()
        return checkpoint_path

    def save_checkpoint(self) -> str | None:
        """Saves now, whether or not the manager has an interval.

        With `enable_async_checkpointing` this begins to save, in the midst of a training, and
        waits for the save before, if that is still under way.

        Returns:
          The path; `None` if this step has been saved before.
        """
        checkpoints = self._required_checkpoints("save_checkpoint")
        # Hooks hear of a checkpoint before the next one may take its place on the disk.
        self._sync_on_async_checkpointing()
        path = checkpoints.save(self.step)
        if self._is_running:
            self._tell_of_checkpoint()
        else:
            self._sync_on_async_checkpointing()
        return path

    def close(self) -> None:
        """Closes the event files of `summary_dir` and `eval_summary_dir`."""
        self._summaries.close()

    def checkpoint_every(self, num_steps: int) -> None:
        """Saves at the multiples of `num_steps`, beside the manager's own interval, and at the end.

        Args:
          num_steps: The interval; naming it again changes nothing.
        """
        self._required_checkpoints("checkpoint_every").add_interval(num_steps)

    @property
    def train_logs(self) -> runner.Output:
        """The last value of everything that training has reported: NumPy and Python values."""
        return self._reports.train_logs

    @property
    def eval_logs(self) -> runner.Output:
        """The results of the last evaluation."""
        return self._reports.eval_logs

    @property
    def train_seconds(self) -> float:
        """The time that the trainer has taken so far, without what happens between its calls."""
        return self._inner.seconds if self.trainer is not None else 0.0

    @property
    def steps_per_loop(self) -> int:
        """The length of a reporting interval that begins at the current step."""
        self._require("trainer", for_method="steps_per_loop")
        return self._inner.length_at(self.step)

    @contextlib.contextmanager
    def step_context(self) -> Iterator[None]:
        """What steps run in: for one who traces or tries them outside of `train`."""
        with self.storage, self._summaries.of_steps():
            yield

    def _required_checkpoints(self, for_method: str) -> checkpointing.Checkpointing:
        if self._checkpoints is None:
            raise outer_loop.missing("checkpoint_manager", for_method)
        return self._checkpoints
