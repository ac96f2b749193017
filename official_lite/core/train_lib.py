"""`run_experiment`, and the experiment runner whose parts a subclass can replace."""

import contextlib
import copy
import functools
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_lite import orbit, telemetry
from official_lite.checkpoint import async_checkpoint_manager, directories, model_state
from official_lite.common import (
    distribute_utils,
    errors,
    files,
    goodput,
    preemption,
    terminal,
)
from official_lite.common.flags import Mode
from official_lite.config import compatibility, epochs, parsing
from official_lite.core import (
    actions,
    base_task,
    base_trainer,
    best_checkpoint,
    checkpoint_state,
    config_definitions,
    exporter_events,
    fit_memory,
    prediction_run,
    predictor,
    preflight,
    train_data,
    trainer_factory,
    writer_factory,
)
from official_lite.execution import auto, execution_record, modes
from official_lite.modeling import hyperparams, model_summary
from official_lite.run import driver, run_record, runtime

__all__ = [
    "Logs",
    "OrbitExperimentRunner",
    "execute",
    "maybe_create_best_ckpt_exporter",
    "run_experiment",
]


Logs = Mapping[str, Any]

# The flags that run a user's code. An `export` command must repeat them.
_CODE_FLAGS = ("--import=", "--gin_file=", "--gin_params=")

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# Sent to the other workers instead of a checkpoint name: nothing was restored, or restoring failed.
_NOTHING, _FAILED = ".", ""

# Runs with fewer steps than this are cheap to repeat, so no warning is logged if they save no
# checkpoint.
_STEPS_WORTH_SAVING = 100


class OrbitExperimentRunner:
    """Builds the parts of a run and executes the run in its mode.

    Each part is built by its own method, so that a subclass can replace one and keep the others::

        _build_trainer  _build_best_checkpoint_exporter  _maybe_build_checkpoint_manager
        _build_writers  _build_hooks  _build_train_actions  _build_eval_actions
        _build_controller  _find_evaluator

    `run` executes a complete run. Its parts can also be called separately: `restore` (if the
    constructor did not restore), `run_mode`, `train`, `evaluate`, `close` and `show_summary`.

    Args:
        distribution_strategy: The strategy; None for the default strategy.
        task: The task.
        mode: `train`, `eval`, `train_and_eval`, `continuous_eval`, `train_and_post_eval`, `test` or
            `predict`.
        params: The experiment's config.
        model_dir: The model directory; `run_record` describes its contents.
        run_post_eval: Whether to evaluate once after training and return the metrics.
        save_summary: Whether to write metrics and event files.
        train_actions: Functions called with the training metrics after each reporting interval.
        eval_actions: Functions called with the metrics after each evaluation.
        trainer: A trainer to use instead of the one in the config.
        controller_cls: A subclass of `orbit.Controller`.
        summary_manager: The summary manager for training, instead of event files.
        eval_summary_manager: The summary manager for evaluation, instead of event files.
        enable_async_checkpointing: Whether training continues while a checkpoint is written.
        hooks: Hooks that run after the hooks of the trainer and of the config.
        allow_config_change: Whether training may resume from checkpoints of a different config.
        restore: Whether the constructor restores the latest checkpoint; if not, call `restore`.
    """

    # Whether a model shared by several tasks loads its own weights.
    _loads_weights = False

    def __init__(
        self,
        distribution_strategy: tf.distribute.Strategy | None,
        task: base_task.Task,
        mode: str,
        params: config_definitions.ExperimentConfig,
        model_dir: str,
        run_post_eval: bool = False,
        save_summary: bool = True,
        train_actions: Sequence[orbit.Action] | None = None,
        eval_actions: Sequence[orbit.Action] | None = None,
        trainer: base_trainer.Trainer | None = None,
        controller_cls: type[orbit.Controller] = orbit.Controller,
        summary_manager: orbit.utils.SummaryManagerInterface | None = None,
        eval_summary_manager: orbit.utils.SummaryManagerInterface | None = None,
        enable_async_checkpointing: bool = True,
        hooks: Sequence[orbit.Hook] = (),
        allow_config_change: bool = False,
        restore: bool = True,
    ) -> None:
        self.strategy = distribution_strategy or tf.distribute.get_strategy()
        if not driver.is_driven(model_dir):
            reads_files = restore and trainer is None
            _check(
                params,
                mode,
                model_dir,
                self.strategy,
                task,
                restore,
                reads_files,
                loads_weights=self._loads_weights,
            )
        preflight.require_agreement(params, self.strategy, mode)
        self._mode = Mode.parse(mode)
        if self._mode.tests:
            params = config_definitions.for_test(params)
            preflight.check_tested_data(params, trainer)
            # The task may read its own config, so replace that config, too. Copy the task first to
            # leave the caller's task unchanged.
            task = copy.copy(task)
            task._task_config = params.task
        self._params = params = parsing.read_model_files(params)
        self._model_dir = model_dir
        self._run_post_eval = run_post_eval
        self._hooks = tuple(hooks)
        self._all_hooks: Sequence[orbit.Hook] = ()
        self._allow_config_change = allow_config_change
        self._restore = restore
        self._execution_record: execution_record.ExecutionRecord | None = None
        self._writes_events = False
        # The mode `predict` has no metrics to write.
        save_summary = save_summary and not self._mode.predicts
        self._restored_path: str | None = None
        self._trainer = trainer or self._build_trainer(
            task, train=self._mode.trains, evaluate=self._mode.evaluates or run_post_eval
        )
        exporter_events.restrict(self._find_evaluator(), self._owns_best_checkpoint)
        preflight.check_metric(params, self.trainer)
        preflight.check_evaluation_data(params, self.trainer)
        self._checkpoint_manager = self._maybe_build_checkpoint_manager()
        self._summary_manager = summary_manager
        self._eval_summary_manager = eval_summary_manager
        self._last_records = telemetry.LastRecordsWriter()
        self._writers = self._build_writers() if save_summary else []
        with contextlib.ExitStack() as on_exit:
            on_exit.callback(writer_factory.close_all, self._writers)
            # `evaluating_apart` hides the test results from the checkpoint exporter. A plain Orbit
            # trainer has no exporter and lacks this method.
            if self._mode.tests and hasattr(self.trainer, "evaluating_apart"):
                on_exit.enter_context(self.trainer.evaluating_apart())
            self._controller = self._build_controller(
                trainer=self.trainer if self._mode.trains else None,
                evaluator=self._find_evaluator(),
                save_summary=save_summary,
                train_actions=train_actions,
                eval_actions=eval_actions,
                controller_cls=controller_cls,
                enable_async_checkpointing=enable_async_checkpointing,
            )
            # Set the number now, because hooks may evaluate before the first evaluation of the
            # mode.
            self._controller.eval_steps = train_data.validation_steps(params)
            on_exit.callback(self._controller.close)
            if self._restore and not self.trains:
                self.restore()
            self._opened = on_exit.pop_all()
        # A plain Orbit trainer may have no model.
        model = orbit.runner.model_of(self.trainer)
        if model is not None and (description := model_summary.describe(model)):
            title, *layers = description.split("\n")
            logging.info("%s", distribute_utils.describe(self.strategy))
            logging.info("%s", title)
            if layers:
                logging.info("Layers:\n%s", "\n".join(layers), extra=terminal.DETAIL)

    @property
    def params(self) -> config_definitions.ExperimentConfig:
        return self._params

    @property
    def model_dir(self) -> str:
        """The model directory of the run."""
        return self._model_dir

    @property
    def trainer(self) -> base_trainer.Trainer:
        return self._trainer

    @property
    def checkpoint_manager(self) -> tf.train.CheckpointManager | None:
        return self._checkpoint_manager

    @property
    def controller(self) -> orbit.Controller:
        return self._controller

    def run(self) -> tuple[keras.Model, Logs]:
        """Run the mode and record the run; see `run.driver`.

        Returns:
            The model, and the metrics of the evaluation after training if one was requested, or
            those of a test, or the counts of a prediction; else an empty dictionary.
        """
        logs: Logs = {}

        def work(_: run_record.RunRecord) -> None:
            nonlocal logs
            logging.info("Starting the mode %s.", self._mode, extra=terminal.DETAIL)
            try:
                with contextlib.closing(self), self.strategy.scope():
                    logs = self.run_mode(self.train, self.evaluate, self.predict)
            except fit_memory.MicroBatchTooLargeError:
                fit_memory.detach(self._hooks)
                raise
            self.show_summary()

        driver.drive(
            work,
            params=self.params,
            mode=self._mode,
            model_dir=self.model_dir,
            is_chief=directories.is_chief(self.strategy),
            allow_config_change=self._allow_config_change,
            uses_cluster=self.strategy.cluster_resolver is not None,
            at_the_end=[self._note_results],
        )
        wanted = (Mode.TRAIN_AND_POST_EVAL, Mode.TEST, Mode.PREDICT)
        return self.trainer.model, logs if self._run_post_eval or self._mode in wanted else {}

    def run_mode(
        self,
        train: Callable[[], Logs | None],
        evaluate: Callable[[], Logs | None],
        predict: Callable[[], Logs | None] = dict,
    ) -> Logs:
        """Call the given functions as the mode requires.

        Returns:
            The metrics of the last evaluation, or the counts of a prediction; an empty dictionary
            if there was neither.
        """
        if self._mode.predicts:
            return predict() or {}
        logs = train() if self.trains else None
        if not logs and self.evaluates_last:
            logs = evaluate()
        return logs or {}

    @property
    def trains(self) -> bool:
        """Whether the mode trains."""
        return self._mode.trains

    @property
    def evaluates_last(self) -> bool:
        """Whether the mode ends with an evaluation that is not part of the training."""
        return self._mode.evaluates_last or self._run_post_eval

    def restore(self) -> str | None:
        """Restore the latest checkpoint, or let the task load pretrained weights if there is none.

        Returns:
            The path of the checkpoint; None if there was none.

        A prediction restores the checkpoint that `prediction.checkpoint` selects, and a test the
        best checkpoint, if there is one.

        Raises:
            errors.CheckpointError: If the checkpoint does not match the model, or if the mode only
                evaluates or predicts and there is no checkpoint.
        """
        # Training workers need not agree, because no other run saves checkpoints in their model
        # directory. `continuous_eval` restores each checkpoint later.
        follows = not self.trains and self._mode is not Mode.CONTINUOUS_EVAL
        self._restored_path = (
            self._restore_together(self._restore_own) if follows else self._restore_own()
        )
        return self._restored_path

    def _restore_own(self) -> str | None:
        """Restore the checkpoint that this worker finds; see `restore`."""
        # A plain Orbit trainer and the evaluator of several tasks do not load weights themselves.
        own = self.trainer if isinstance(self.trainer, base_trainer.Trainer) else None
        preflight.check_evaluation(
            self.params,
            self._mode,
            self.model_dir,
            type(own.task) if own and hasattr(own, "task") else None,
            type(own) if own else None,
            loads_weights=self._loads_weights,
        )
        if not self.checkpoint_manager:
            return None
        chosen = self.params.prediction.checkpoint if self._mode.predicts else "latest"
        if chosen == "init":
            with self.strategy.scope():
                self.trainer.initialize()
            return None
        path = None
        if chosen == "best":
            path = preflight.require_best_checkpoint(self.params, self.model_dir)
        if self._mode.tests:
            path = preflight.find_best_checkpoint(self.params, self.model_dir)
        restored = self.controller.restore_checkpoint(path)
        if self._mode.tests:
            kind = "best" if path else "latest" if restored else "initial"
            source = restored or self.params.task.init_checkpoint or "the task"
            logging.info("Testing the %s weights, from %s.", kind, source)
        return restored

    def _restore_together(self, restore: Callable[[], str | None]) -> str | None:
        """Restore the checkpoint of the chief on all workers, or raise an error on all of them.

        A training run may save or remove a checkpoint while the workers look for the latest one.
        Each worker restores only its own copies of the variables, so the copies could differ.

        Args:
            restore: A function that restores a checkpoint on this worker and returns its path.
        """
        if self.checkpoint_manager is not None:
            with self.strategy.scope():
                # Create this variable now, because all workers have to create it together.
                _ = self.checkpoint_manager.checkpoint.save_counter
        restored, failure = None, None
        try:
            restored = restore()
            name = os.path.relpath(restored, self.model_dir) if restored else _NOTHING
        except (errors.CheckpointError, tf.errors.NotFoundError, OSError) as error:
            failure, name = error, _FAILED
        with self.strategy.scope():
            exchange = predictor.create_exchange(self.strategy)
            told = exchange([{"name": np.array([name.encode()], object)}])
        names = [one["name"][0].decode() for one in told]
        if len({each if each in (_NOTHING, _FAILED) else "restored" for each in names}) > 1:
            raise errors.CheckpointError(
                f"Only some workers could restore a checkpoint from {self.model_dir}, probably "
                "because a running training has just saved or removed one. Start the same command "
                "again."
            ) from failure
        if failure is not None:
            raise failure
        if len(set(names)) == 1:
            return restored
        path = os.path.join(self.model_dir, names[0])
        is_restored = name == names[0]
        return self._restore_together(
            lambda: restored if is_restored else self.controller.restore_checkpoint(path)
        )

    def predict(self) -> Logs:
        """Write the predictions for all rows of the input that are not written yet.

        Call this method in the strategy's scope.

        Returns:
            The number of rows and shards in the directory, and for this call the number of new
            rows, the duration in seconds, and the rows per second; empty on all workers except the
            chief.

        Raises:
            errors.ConfigValueError: If the directory has predictions of another config, of other
                weights or of other input.
            errors.PreemptedError: If a signal requested a stop; the next call resumes.
        """
        return prediction_run.run(
            self.trainer, self.params, self.model_dir, restored=self._restored_path
        )

    def train(self) -> Logs | None:
        """Train, with evaluations during training if the mode includes them.

        Call this method in the strategy's scope.

        Returns:
            The metrics of the last evaluation; None if the mode does not evaluate during training.
        """
        config = self.params.trainer
        if config.train_steps == 0:
            logging.warning(
                "`trainer.train_steps` is 0, so nothing is trained. The initial weights are "
                "evaluated and saved."
            )
        preemption.check()
        self._warn_of_no_checkpoint()
        self._warn_of_ended_schedule()
        if self._mode is Mode.TRAIN_AND_EVAL:
            # As in the Model Garden, an interval of 0 means a single evaluation at the end.
            return self.controller.train_and_evaluate(
                train_steps=config.train_steps,
                eval_steps=train_data.validation_steps(self.params),
                eval_interval=config.validation_interval or None,
            )
        self.controller.train(steps=config.train_steps)
        if not self.evaluates_last:
            self._export_averaged_weights()
        return None

    def evaluate(self) -> Logs | None:
        """Evaluate the current state once, or every new checkpoint in `continuous_eval`.

        Returns:
            The metrics of the last evaluation.
        """
        steps = train_data.validation_steps(self.params)
        if self._mode is Mode.CONTINUOUS_EVAL:
            return self.controller.evaluate_continuously(
                steps=steps, timeout=self.params.trainer.continuous_eval_timeout
            )
        return self.controller.evaluate(steps=steps)

    @goodput.measuring("compiling")
    def choose_execution(self) -> None:
        """Choose the execution mode for `runtime.execution: auto`.

        The modes are benchmarked in the state in which training begins: after `before_train` of all
        other hooks and `train_loop_begin` of the trainer. If a stage trains pass by pass, the mode
        is chosen in the first pass only, because setting a mode restarts the training data.
        """
        if self._execution_record is not None:
            return
        # A plain Orbit trainer has no execution modes, and multi-task trainers are not benchmarked.
        has_modes = isinstance(self.trainer, base_trainer.Trainer) and hasattr(self.trainer, "task")
        num_steps = self.params.trainer.train_steps - self.controller.step
        if not has_modes or modes.execution_of(self.params.runtime) != "auto":
            return
        if num_steps <= 0:
            return
        with self.controller.step_context():
            record = auto.choose(
                self.trainer, num_steps, self.model_dir, evaluates=self._mode is Mode.TRAIN_AND_EVAL
            )
        logging.info("Execution mode: %s", record.describe())
        self._execution_record = record
        if record.was_compared:
            runtime = self.params.runtime.replace(execution=record.execution)
            self._params = self.params.replace(runtime=runtime)

    @property
    def execution_record(self) -> execution_record.ExecutionRecord | None:
        """The decision of `runtime.execution: auto`; None if no mode had to be chosen."""
        return self._execution_record

    @property
    def lacks_evaluation(self) -> bool:
        """Whether the mode only evaluates and no metrics have been recorded."""
        return not self.trains and bool(self._writers) and not self._last_records.rows()

    def close(self) -> None:
        """Close writers and event files. It is safe to call this method more than once."""
        self._opened.close()

    def show_summary(self) -> None:
        """Print the last metrics, and how to export the best model, if the run has writers."""
        if not self._writers:
            return
        telemetry.summary_table(dict(self._last_records.rows()))
        best = preflight.find_best_checkpoint(self.params, self.model_dir)
        # `export` finds the config of a checkpoint only in the directories above it.
        if self.trains and best and best.startswith(os.path.join(self.model_dir, "")):
            # `export` imports only the code that its own command line names.
            code = [text for text in sys.argv[1:] if text.startswith(_CODE_FLAGS)]
            arguments = shlex.join([os.path.dirname(best), *code])
            logging.info(
                "To export the best model: python -m official_lite.tools export %s", arguments
            )

    def _build_trainer(
        self, task: base_task.Task, train: bool, evaluate: bool
    ) -> base_trainer.Trainer:
        with self.strategy.scope():
            return trainer_factory.create_trainer(
                self.params,
                task,
                train=train,
                evaluate=evaluate,
                checkpoint_exporter=self._build_best_checkpoint_exporter(),
            )

    def _find_evaluator(self) -> Any:
        """Return the evaluator: the trainer, unless a subclass has a separate one."""
        return self.trainer

    def _build_best_checkpoint_exporter(self) -> best_checkpoint.BestCheckpointExporter | None:
        return best_checkpoint.maybe_create_best_ckpt_exporter(self.params, self.model_dir)

    def _owns_best_checkpoint(self) -> bool:
        """Return whether an evaluation may replace the best checkpoint of the run.

        A training run that evaluates owns the best checkpoint. The mode `eval` does not, because it
        may evaluate other data. If the training run does not evaluate, the mode `continuous_eval`
        owns it. Either job may start first, so the record of the other job is read in each call.
        """
        if self._mode is Mode.CONTINUOUS_EVAL:
            training = compatibility.read_run(self.model_dir).get("mode", Mode.TRAIN)
            return bool(training == Mode.TRAIN)
        if self._mode is Mode.TRAIN:
            # With `run_post_eval`, this run also evaluates its last checkpoint. If there is a
            # `continuous_eval` job, leave the best checkpoint to that job.
            record = os.path.join(self.model_dir, f"run.{Mode.CONTINUOUS_EVAL}.json")
            return not files.exists(record)
        return self._mode is not Mode.EVAL

    def _maybe_build_checkpoint_manager(self) -> tf.train.CheckpointManager | None:
        if not self.trainer.checkpoint:
            return None
        checkpoint_state.add_attributes(self.trainer.checkpoint, self.trainer, trains=self.trains)
        description = checkpoint_state.RunDescription(
            self.trainer, self.strategy, lambda: self.params
        )
        return async_checkpoint_manager.SharedCheckpointManager(
            self.trainer.checkpoint,
            directory=self.model_dir,
            strategy=self.strategy,
            max_to_keep=self.params.trainer.max_to_keep,
            step_counter=self.trainer.global_step,
            checkpoint_interval=self.params.trainer.checkpoint_interval or None,
            init_fn=self.trainer.initialize,
            describe=description if self.trains else self._describe_model,
            after_restore=description.follow_hyperparameters if self.trains else None,
            optional=self._find_unneeded,
            moves_damaged=self.trains,
            seal=(lambda: driver.seal_record(self.model_dir)) if self.trains else None,
        )

    def _describe_model(self) -> Mapping[str, Any]:
        """Describe the model properties that must be equal in training and evaluation."""
        return model_state.describe(orbit.runner.model_of(self.trainer), None)

    def _find_unneeded(self) -> Iterable[Any]:
        """Return the variables that a checkpoint may lack in this mode."""
        if self.trains:
            return checkpoint_state.find_new_kinds(self.trainer.checkpoint)
        optimizer = orbit.runner.optimizer_of(self.trainer)
        return checkpoint_state.find_unneeded(self.trainer.checkpoint, optimizer)

    def _build_writers(self) -> list[telemetry.Writer]:
        if not directories.is_chief(self.strategy):
            return []
        factories = preflight.find_writers(self.params)
        return [*writer_factory.create_writers(factories, self._run_info()), self._last_records]

    def _run_info(self) -> telemetry.RunInfo:
        return telemetry.RunInfo(
            model_dir=self.model_dir,
            total_steps=self.params.trainer.train_steps,
            # In a test, this config has the test data in place of the validation data, so an
            # experiment tracker must not replace the config of the training run with it.
            config={} if self._mode.tests else self.params.as_dict(),
            mode=self._mode,
            train_epochs=getattr(epochs.given(self.params).trainer, "train_epochs", None),
        )

    def _build_hooks(self, trainer: base_trainer.Trainer | None) -> list[orbit.Hook]:
        """Build the hooks of the trainer and of the config, and append the caller's hooks.

        If the mode does not train, only the caller's hooks are used. The mode `eval` omits hooks
        that keep the best checkpoint, because a single evaluation may be of other data. The mode
        `test` omits all hooks that watch a metric, because these hooks expect validation results.
        If the mode trains and there is no `StallWarning`, one is added, which warns if training
        makes no progress.
        """
        if trainer is None:
            return [hook for hook in self._hooks if not self._is_omitted(hook)]
        # A plain Orbit trainer has no `build_hooks`.
        own: list[orbit.Hook] = getattr(trainer, "build_hooks", list)()
        named = [create() for create in preflight.find_hooks(self.params)]
        last = orbit.hooks.LambdaHook(before_train=self._begin_training)
        stall = [orbit.hooks.StallWarning()]
        if any(isinstance(h, orbit.hooks.StallWarning) for h in (*own, *named, *self._hooks)):
            stall = []
        hooks = [*own, *stall, *named, *self._hooks, last]
        keepers = [hook for hook in hooks if isinstance(hook, orbit.hooks.BestCheckpoint)]
        preflight.check_directories(self.params, self.model_dir, keepers)
        preflight.check_hooks(self.trainer, hooks, evaluates=self._mode.evaluates)
        orbit.hooks.keras_callback.check_schedules(hooks, orbit.runner.optimizer_of(trainer))
        self._all_hooks = hooks
        return hooks

    def _is_omitted(self, hook: orbit.Hook) -> bool:
        """Return whether a mode that does not train omits a hook of the caller."""
        if self._mode.tests:
            return bool(hook.watched_metric)
        return self._mode is Mode.EVAL and isinstance(hook, orbit.hooks.BestCheckpoint)

    def _build_controller(
        self,
        trainer: base_trainer.Trainer | None,
        evaluator: base_trainer.Trainer | None,
        save_summary: bool = True,
        train_actions: Sequence[orbit.Action] | None = None,
        eval_actions: Sequence[orbit.Action] | None = None,
        controller_cls: type[orbit.Controller] = orbit.Controller,
        enable_async_checkpointing: bool = True,
    ) -> orbit.Controller:
        all_train_actions = list(train_actions or [])
        if trainer:
            all_train_actions += self._build_train_actions(trainer)
        all_eval_actions = list(eval_actions or [])
        if evaluator:
            all_eval_actions += self._build_eval_actions(evaluator)
        if self._mode is Mode.CONTINUOUS_EVAL:
            all_eval_actions.append(self._stop_after_the_last_checkpoint)
        config = self.params.trainer
        eval_subdir = "test" if self._mode.tests else config.validation_summary_subdir
        hooks = self._build_hooks(trainer)
        has_events = save_summary and preflight.writes_event_files(self.params)
        self._writes_events = has_events and directories.is_chief(self.strategy)
        return controller_cls(
            strategy=self.strategy,
            trainer=trainer,
            evaluator=evaluator,
            global_step=self.trainer.global_step,
            steps_per_loop=config.steps_per_loop,
            checkpoint_manager=self.checkpoint_manager,
            enable_async_checkpointing=enable_async_checkpointing,
            summary_dir=os.path.join(self.model_dir, "train") if self._writes_events else None,
            eval_summary_dir=(
                os.path.join(self.model_dir, eval_subdir) if self._writes_events else None
            ),
            # Set the interval on all workers, because the interval splits loops; workers with loops
            # of different lengths would wait for each other.
            summary_interval=(config.summary_interval or None) if has_events else None,
            train_actions=all_train_actions,
            eval_actions=all_eval_actions,
            summary_manager=self._summary_manager,
            eval_summary_manager=self._eval_summary_manager,
            writers=self._writers,
            hooks=hooks,
            log_interval=config.log_interval or None,
            steps_per_epoch=config.steps_per_epoch or None,
            model_dir=self.model_dir,
            restore=self._restore and self.trains,
            # Pass this argument only in a test, so that a subclass of the controller need not
            # accept it in other modes.
            **({"eval_split": "test"} if self._mode.tests else {}),
        )

    def _build_train_actions(self, trainer: base_trainer.Trainer) -> list[orbit.Action]:
        return actions.get_train_actions(
            self.params, trainer, self.model_dir, checkpoint_manager=self.checkpoint_manager
        )

    def _build_eval_actions(self, evaluator: base_trainer.Trainer) -> list[orbit.Action]:
        # An evaluation-only job must not write to the training job's directory.
        if not self._mode.trains:
            return []
        return actions.get_eval_actions(self.params, evaluator, self.model_dir)

    def _note_results(self, record: run_record.RunRecord, error: BaseException | None) -> None:
        model = orbit.runner.model_of(self.trainer)
        driver.note_results(record, error, self.trainer.global_step, model, self.controller)

    def _begin_training(self, _: orbit.Hook) -> None:
        self._save_a_point_to_recover_to()
        self.choose_execution()
        if self._writes_events:
            telemetry.write_hparams(self.model_dir, self._run_info().flat_config())

    def _warn_of_no_checkpoint(self) -> None:
        """Warn if a long training run saves no checkpoint to resume from."""
        config, manager = self.params.trainer, self.checkpoint_manager
        has_one = manager is None or manager.latest_checkpoint
        saves = any(isinstance(h, orbit.hooks.PeriodicCheckpoint) for h in self._all_hooks)
        is_long = config.train_steps >= _STEPS_WORTH_SAVING
        if has_one or saves or not is_long or config.train_steps >= config.checkpoint_interval:
            return
        wanted = config.validation_interval if self._mode is Mode.TRAIN_AND_EVAL else 0
        if not 0 < wanted < config.train_steps:
            wanted = config.train_steps // 10
        logging.warning(
            "No checkpoint is saved before training ends at step %d, because "
            "`trainer.checkpoint_interval` is %d. If the run is killed, it starts from step 0 "
            "again. To resume instead, set `trainer.checkpoint_interval`, for example to %d.",
            config.train_steps,
            config.checkpoint_interval,
            wanted,
        )

    def _warn_of_ended_schedule(self) -> None:
        """Warn if a schedule in ratios ends before the step count loaded from `init_checkpoint`."""
        part = hyperparams.get_by_path(self.params, "task.init_checkpoint_optimizer")
        optimizer = orbit.runner.optimizer_of(self.trainer)
        if part != "all" or optimizer is None or self.controller.step > 0:
            return
        path = "trainer.optimizer_config.learning_rate"
        choice = hyperparams.get_by_path(epochs.given(self.params), path)
        schedule = choice.get() if choice is not None else None
        count = int(optimizer.iterations.numpy())
        for name, ratio in getattr(schedule, "CLEARS", {}).items():
            steps = hyperparams.get_by_path(self.params, f"{path}.{choice.type}.{name}")
            last = max(steps) if isinstance(steps, list | tuple) else steps
            if getattr(schedule, ratio) and count >= last:
                logging.warning(
                    "The learning-rate schedule ends at step %d, because `%s.%s.%s` is a fraction "
                    "of the steps of this run only. With `task.init_checkpoint_optimizer: all`, "
                    "the schedule begins at step %d, after its end. To continue an earlier "
                    "schedule, set `%s` instead. To start a new one, set "
                    "`task.init_checkpoint_optimizer` to `slots`.",
                    last,
                    path,
                    choice.type,
                    ratio,
                    count,
                    name,
                )

    def _save_a_point_to_recover_to(self) -> None:
        """Save the initial state if the run may have to restore it before its first checkpoint."""
        config = self.params.trainer
        wanted = config.recovery_max_trials > 0 or config.fit_memory
        if wanted and self.checkpoint_manager and self.controller.step == 0:
            self.controller.save_checkpoint()
            # Wait until it is written, because the checkpoint describes the execution mode, which
            # changes while the modes are benchmarked.
            self.checkpoint_manager.sync()

    def _export_averaged_weights(self) -> None:
        """Export the averaged weights, which are otherwise exported only after an evaluation."""
        for action in self.controller.eval_actions:
            if isinstance(action, actions.EMACheckpointing):
                action()

    def _stop_after_the_last_checkpoint(self, _: orbit.runner.Output) -> None:
        step = int(self.trainer.global_step.numpy())
        if step >= self.params.trainer.train_steps:
            self.controller.request_stop(f"completed: evaluated the last checkpoint at step {step}")


maybe_create_best_ckpt_exporter = best_checkpoint.maybe_create_best_ckpt_exporter


def _with_arguments_of(
    cls: Callable[_Arguments, Any],
) -> Callable[[Callable[[dict[str, Any]], _Result]], Callable[_Arguments, _Result]]:
    """Return a decorator that gives a function the parameters of `cls`.

    The decorated function receives the arguments of a call as a dictionary.
    """
    signature = inspect.signature(cls)

    def decorate(function: Callable[[dict[str, Any]], _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def wrapper(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return function(bound.arguments)

        # `inspect.signature` reads this attribute, which type checkers don't know.
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        return wrapper

    return decorate


@_with_arguments_of(OrbitExperimentRunner)
def run_experiment(arguments: dict[str, Any]) -> tuple[keras.Model, Logs]:
    """Train, evaluate, test or predict, resuming from the checkpoint in `model_dir`, if any.

    ::

        model, logs = run_experiment(strategy, task, "train_and_eval", params, model_dir)

    The arguments are those of `OrbitExperimentRunner`.

    Returns:
        The model, and the metrics of the evaluation after training if one was requested, or those
        of a test, or the counts of a prediction; else an empty dictionary.

    Raises:
        errors.OfficialLiteError: For every error that the user can fix; see `common.errors`.
    """
    params = parsing.read_model_files(parsing.expand_home(arguments["params"]))
    task, trainer = arguments["task"], arguments["trainer"]
    if trainer is not None and params.trainer.fit_memory:
        raise errors.ConfigValueError(
            "`trainer.fit_memory` is true, but `run_experiment` got a trainer, which it can't "
            "build again with smaller micro-batches. Set it to false, or pass no trainer."
        )
    divides_data = (
        trainer_factory.divides_data(params)
        if trainer is None
        else getattr(trainer, "divides_data", False)
    )
    mode, model_dir = arguments["mode"], files.expand_home(arguments["model_dir"])
    params = train_data.resolve_epochs(params, task, mode, model_dir, divides_data=divides_data)
    arguments |= {"params": params, "model_dir": model_dir}
    return execute(
        functools.partial(OrbitExperimentRunner, **arguments),
        strategy=arguments["distribution_strategy"],
        params=params,
        mode=mode,
        model_dir=model_dir,
        task=task,
        reads_files=trainer is None,
        allow_config_change=arguments["allow_config_change"],
    )


def execute(
    build_runner: Callable[..., OrbitExperimentRunner],
    *,
    strategy: tf.distribute.Strategy | None,
    params: config_definitions.ExperimentConfig,
    mode: str,
    model_dir: str,
    task: base_task.Task | None = None,
    reads_files: bool = True,
    loads_weights: bool = False,
    allow_config_change: bool = False,
) -> tuple[keras.Model, Logs]:
    """Check a run, then build and run its runner under the config's seed and precision.

    Args:
        build_runner: A function that builds the runner. If `trainer.fit_memory` changes the config,
            it gets the changed one as `params`.
        strategy: The strategy.
        params: The config of the experiment.
        mode: The mode.
        model_dir: The model directory.
        task: The task.
        reads_files: Whether the run reads the input files that the config names.
        loads_weights: Whether a model shared by several tasks loads its own weights.
        allow_config_change: Whether training may resume from checkpoints of a different config.

    Returns:
        The result of the runner.
    """
    _check(
        params,
        mode,
        model_dir,
        strategy,
        task,
        reads_files=reads_files,
        loads_weights=loads_weights,
    )
    results: list[tuple[keras.Model, Logs]] = []

    def attempt(changed: config_definitions.ExperimentConfig) -> None:
        arguments = {} if changed is params else {"params": changed}
        with runtime.seed_and_precision(changed.runtime):
            results.append(build_runner(**arguments).run())

    def work(record: run_record.RunRecord) -> None:
        fit_memory.run(attempt, params, record)

    driver.drive(
        work,
        params=params,
        mode=mode,
        model_dir=model_dir,
        is_chief=directories.is_chief(strategy),
        allow_config_change=allow_config_change,
        uses_cluster=bool(strategy and strategy.cluster_resolver),
    )
    return results[0]


def _check(
    params: config_definitions.ExperimentConfig,
    mode: str,
    model_dir: str,
    strategy: tf.distribute.Strategy | None,
    task: base_task.Task | None,
    reads_weights: bool = True,
    reads_files: bool = True,
    loads_weights: bool = False,
) -> None:
    # Skip the check of input files in a cluster: if one process failed alone, the others would wait
    # for it.
    is_alone = not (strategy and strategy.cluster_resolver)
    preflight.check_run(
        params,
        mode,
        model_dir,
        task=task,
        reads_weights=reads_weights,
        reads_files=reads_files and is_alone,
        loads_weights=loads_weights,
    )
