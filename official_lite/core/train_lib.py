"""Runs an experiment: `run_experiment`, and the runner whose parts can be replaced."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite import orbit, telemetry
from official_lite.checkpoint import directories, shared_checkpoint_manager
from official_lite.common import errors, flags, suggestions
from official_lite.core import (
    actions,
    base_task,
    base_trainer,
    best_checkpoint,
    config_definitions,
    model_summary,
    run_record,
    runtime,
    trainer_factory,
)

__all__ = [
    "OrbitExperimentRunner",
    "execute",
    "maybe_create_best_ckpt_exporter",
    "run_experiment",
]

maybe_create_best_ckpt_exporter = best_checkpoint.maybe_create_best_ckpt_exporter

RUNNER_MODES = ("train", "eval", "train_and_eval", "continuous_eval", "train_and_post_eval")

Logs = Mapping[str, Any]


class OrbitExperimentRunner:
    """Builds the parts of a run, then runs it by its mode.

    Each part has a method of its own, so that a subclass can replace one and keep the others::

        _build_trainer  _build_best_checkpoint_exporter  _maybe_build_checkpoint_manager
        _build_writers  _build_train_actions  _build_eval_actions  _build_controller
    """

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
        enable_async_checkpointing: bool = False,
    ) -> None:
        """Builds the parts; the arguments are those of `run_experiment`."""
        _check_mode(mode)
        self.strategy = distribution_strategy or tf.distribute.get_strategy()
        self._params = params
        self._model_dir = model_dir
        self._mode = mode
        self._run_post_eval = run_post_eval
        _check_that_there_is_something_to_evaluate(mode, params, model_dir)
        self._trainer = trainer or self._build_trainer(
            task, train="train" in mode, evaluate="eval" in mode or run_post_eval
        )
        self._check_best_metric()
        self._checkpoint_manager = self._maybe_build_checkpoint_manager()
        self._summary_manager = summary_manager
        self._eval_summary_manager = eval_summary_manager
        self._last_records = telemetry.LastRecordsWriter()
        self._writers = self._build_writers() if save_summary else []
        self._controller = self._build_controller(
            trainer=self.trainer if "train" in mode else None,
            evaluator=self.trainer,
            save_summary=save_summary,
            train_actions=train_actions,
            eval_actions=eval_actions,
            controller_cls=controller_cls,
            enable_async_checkpointing=enable_async_checkpointing,
        )

    @property
    def params(self) -> config_definitions.ExperimentConfig:
        return self._params

    @property
    def model_dir(self) -> str:
        """The directory of the run."""
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
        """Runs the mode.

        Returns:
            The model, and the metrics of the evaluation after training if one was asked for; else
            an empty dictionary.
        """
        logging.info("Starts to execute mode: %s", self._mode)
        if count := model_summary.try_count_params(self.trainer.model):
            logging.info("The model has %s parameters.", f"{count:,}")
        with self.strategy.scope(), contextlib.ExitStack() as stack:
            for writer in self._writers:
                stack.callback(writer.close)
            logs = self._run_mode()
            wants_logs = self._run_post_eval or self._mode == "train_and_post_eval"
            if wants_logs and not logs:
                logs = self._evaluate()
        if self._writers:
            telemetry.summary_table(self._last_records.rows(), title=self.model_dir)
        return self.trainer.model, (logs or {}) if wants_logs else {}

    def _run_mode(self) -> Logs | None:
        """Runs the mode; returns the metrics of its last evaluation, if that came last."""
        trainer_config = self.params.trainer
        if self._mode in ("train", "train_and_post_eval"):
            self._save_a_point_to_recover_to()
            self.controller.train(steps=trainer_config.train_steps)
            if self._mode == "train" and not self._run_post_eval:
                self._export_averaged_weights()
            return None
        if self._mode == "train_and_eval":
            self._save_a_point_to_recover_to()
            return self.controller.train_and_evaluate(
                train_steps=trainer_config.train_steps,
                eval_steps=trainer_config.validation_steps,
                eval_interval=trainer_config.validation_interval or None,
            )
        if self._mode == "eval":
            return self._evaluate()
        return self.controller.evaluate_continuously(
            steps=trainer_config.validation_steps,
            timeout=trainer_config.continuous_eval_timeout,
        )

    def _evaluate(self) -> Logs | None:
        return self.controller.evaluate(steps=self.params.trainer.validation_steps)

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

    def _build_best_checkpoint_exporter(
        self,
    ) -> best_checkpoint.BestCheckpointExporter | None:
        return maybe_create_best_ckpt_exporter(self.params, self.model_dir)

    def _maybe_build_checkpoint_manager(self) -> tf.train.CheckpointManager | None:
        if not self.trainer.checkpoint:
            return None
        if self.model_dir is None:
            raise errors.ConfigValueError("`model_dir` must be specified, but got None.")
        return shared_checkpoint_manager.SharedCheckpointManager(
            self.trainer.checkpoint,
            directory=self.model_dir,
            strategy=self.strategy,
            max_to_keep=self.params.trainer.max_to_keep,
            step_counter=self.trainer.global_step,
            checkpoint_interval=self.params.trainer.checkpoint_interval or None,
            init_fn=self.trainer.initialize,
        )

    def _build_writers(self) -> list[telemetry.Writer]:
        if not directories.is_chief(self.strategy):
            return []
        return [
            telemetry.JsonLinesWriter(os.path.join(self.model_dir, "metrics.json")),
            telemetry.build_console_writer(total_steps=self.params.trainer.train_steps),
            self._last_records,
        ]

    def _build_controller(
        self,
        trainer: base_trainer.Trainer | None,
        evaluator: base_trainer.Trainer | None,
        save_summary: bool = True,
        train_actions: Sequence[orbit.Action] | None = None,
        eval_actions: Sequence[orbit.Action] | None = None,
        controller_cls: type[orbit.Controller] = orbit.Controller,
        enable_async_checkpointing: bool = False,
    ) -> orbit.Controller:
        all_train_actions = list(train_actions or [])
        if trainer:
            all_train_actions += self._build_train_actions(trainer)
        all_eval_actions = list(eval_actions or [])
        if evaluator:
            all_eval_actions += self._build_eval_actions(evaluator)
        if self._mode == "continuous_eval":
            all_eval_actions.append(self._stop_after_the_last_checkpoint)
        save_summary = save_summary and directories.is_chief(self.strategy)
        config = self.params.trainer
        return controller_cls(
            strategy=self.strategy,
            trainer=trainer,
            evaluator=evaluator,
            global_step=self.trainer.global_step,
            steps_per_loop=config.steps_per_loop,
            checkpoint_manager=self.checkpoint_manager,
            enable_async_checkpointing=enable_async_checkpointing,
            summary_dir=os.path.join(self.model_dir, "train") if save_summary else None,
            eval_summary_dir=(
                os.path.join(self.model_dir, config.validation_summary_subdir)
                if save_summary
                else None
            ),
            summary_interval=(config.summary_interval or None) if save_summary else None,
            train_actions=all_train_actions,
            eval_actions=all_eval_actions,
            summary_manager=self._summary_manager,
            eval_summary_manager=self._eval_summary_manager,
            writers=self._writers,
        )

    def _build_train_actions(self, trainer: base_trainer.Trainer) -> list[orbit.Action]:
        return actions.get_train_actions(
            self.params, trainer, self.model_dir, checkpoint_manager=self.checkpoint_manager
        )

    def _build_eval_actions(self, evaluator: base_trainer.Trainer) -> list[orbit.Action]:
        # A job that only evaluates does not write into the directory of a training.
        if "train" not in self._mode:
            return []
        return actions.get_eval_actions(self.params, evaluator, self.model_dir)

    def _check_best_metric(self) -> None:
        """Looks for the metric before training, where what is reported can be known."""
        name = getattr(self.params.trainer, "best_checkpoint_eval_metric", "")
        if not name or not _reports_only_its_metrics(self.trainer):
            return
        known = [metric.name for metric in self.trainer.validation_metrics]
        known.append(self.trainer.validation_loss.name)
        if name not in known:
            raise errors.UnknownNameError(
                f"`trainer.best_checkpoint_eval_metric` is {name!r}, which the evaluation does not "
                f"report. {suggestions.did_you_mean(name, known)}"
            )

    def _save_a_point_to_recover_to(self) -> None:
        """Recovery needs a checkpoint to go back to before the first interval is over."""
        wanted = self.params.trainer.recovery_max_trials > 0
        if wanted and self.checkpoint_manager and not self.checkpoint_manager.latest_checkpoint:
            self.controller.save_checkpoint()

    def _export_averaged_weights(self) -> None:
        """Without an evaluation nothing else would export them."""
        for action in self.controller.eval_actions:
            if isinstance(action, actions.EMACheckpointing):
                action()

    def _stop_after_the_last_checkpoint(self, _: orbit.runner.Output) -> None:
        step = int(self.trainer.global_step.numpy())
        if step >= self.params.trainer.train_steps:
            self.controller.request_stop(f"Evaluated the last checkpoint, of step {step}.")


def _reports_only_its_metrics(trainer: Any) -> bool:
    """Whether no code of the user's own adds to the results of an evaluation."""
    return (
        isinstance(trainer, base_trainer.Trainer)
        and type(trainer).eval_end is base_trainer.Trainer.eval_end
        and type(trainer.task).reduce_aggregated_logs is base_task.Task.reduce_aggregated_logs
        and trainer.evaluates
        and not getattr(trainer.model, "compiled", False)
    )


def run_experiment(
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
    enable_async_checkpointing: bool = False,
) -> tuple[keras.Model, Logs]:
    """Trains or evaluates a task as the config says, resuming from `model_dir` if it can.

    Args:
        distribution_strategy: Where to run; None for the default strategy.
        task: The task.
        mode: `train`, `eval`, `train_and_eval`, `continuous_eval` or `train_and_post_eval`.
        params: The experiment's config.
        model_dir: The directory of the run; see `run_record` for what it will hold.
        run_post_eval: Whether to evaluate once after training and return the metrics.
        save_summary: Whether to write metrics and event files.
        train_actions: Called with the training metrics after each reporting interval.
        eval_actions: Called with the metrics after each evaluation.
        trainer: A trainer in place of the one that the config asks for.
        controller_cls: A subclass of `orbit.Controller`.
        summary_manager: Where training summaries go, in place of event files.
        eval_summary_manager: The same for evaluation.
        enable_async_checkpointing: Accepted; training waits until a checkpoint is written.

    Returns:
        The model, and the metrics of the evaluation after training if one was asked for; else an
        empty dictionary.

    Raises:
        errors.OfficialLiteError: For whatever a user can mend; see `common.errors`.
    """
    return execute(
        lambda: OrbitExperimentRunner(
            distribution_strategy=distribution_strategy,
            task=task,
            mode=mode,
            params=params,
            model_dir=model_dir,
            run_post_eval=run_post_eval,
            save_summary=save_summary,
            train_actions=train_actions,
            eval_actions=eval_actions,
            trainer=trainer,
            controller_cls=controller_cls,
            summary_manager=summary_manager,
            eval_summary_manager=eval_summary_manager,
            enable_async_checkpointing=enable_async_checkpointing,
        ),
        strategy=distribution_strategy,
        params=params,
        mode=mode,
        model_dir=model_dir,
    )


def execute(
    build_runner: Callable[[], OrbitExperimentRunner],
    *,
    strategy: tf.distribute.Strategy | None,
    params: config_definitions.ExperimentConfig,
    mode: str,
    model_dir: str,
) -> tuple[keras.Model, Logs]:
    """Builds and runs a runner under the config's seed and precision, and records the run."""
    # Before the record, which is the first thing that is written.
    _check_mode(mode)
    _check_that_there_is_something_to_evaluate(mode, params, model_dir)
    trainer_factory.get_trainer_cls(params)
    with (
        _record(strategy, params, mode, model_dir) as note,
        runtime.seed_and_precision(params.runtime),
    ):
        runner = build_runner()
        model, logs = runner.run()
        note(
            global_step=int(runner.trainer.global_step.numpy()),
            num_parameters=model_summary.try_count_params(model),
        )
        return model, logs


def _check_that_there_is_something_to_evaluate(mode: str, params: Any, model_dir: str) -> None:
    if mode != "eval" or tf.train.latest_checkpoint(model_dir):
        return
    if not getattr(params.task, "init_checkpoint", ""):
        raise errors.CheckpointError(
            f"There is no checkpoint in {model_dir}, so --mode=eval would evaluate random weights. "
            "Train first, or set `task.init_checkpoint`."
        )


def _check_mode(mode: str) -> None:
    if mode not in RUNNER_MODES:
        raise errors.UnknownNameError(
            f"The mode {mode!r} is not implemented. "
            f"{suggestions.did_you_mean(mode, (*RUNNER_MODES, *flags.MODES))}"
        )


@contextlib.contextmanager
def _record(
    strategy: tf.distribute.Strategy | None,
    params: config_definitions.ExperimentConfig,
    mode: str,
    model_dir: str,
) -> Iterator[Any]:
    """The run's record on the chief; elsewhere nothing."""
    if not directories.is_chief(strategy):
        yield lambda **entries: None
        return
    with run_record.RunRecord(params, mode, model_dir) as record:
        yield record.note
