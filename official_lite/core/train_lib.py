"""Runs an experiment: `run_experiment`, and the runner whose parts can be replaced."""

import sys
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.checkpoint import directories
from official_lite.common import errors, reachability
from official_lite.core import (
    base_task,
    base_trainer,
    best_checkpoint,
    config_definitions,
    epochs,
    experiment_runner,
    model_summary,
    run_checks,
    run_record,
    runtime,
)
from official_lite.orbit import preemption

__all__ = [
    "OrbitExperimentRunner",
    "execute",
    "maybe_create_best_ckpt_exporter",
    "note_results",
    "run_experiment",
]

maybe_create_best_ckpt_exporter = best_checkpoint.maybe_create_best_ckpt_exporter


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
    enable_async_checkpointing: bool = True,
    hooks: Sequence[orbit.Hook] = (),
) -> tuple[keras.Model, experiment_runner.Logs]:
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
        enable_async_checkpointing: Whether training goes on while a checkpoint is being written.
        hooks: Run after those of the trainer and of the config.

    Returns:
        The model, and the metrics of the evaluation after training if one was asked for; else an
        empty dictionary.

    Raises:
        errors.OfficialLiteError: For whatever a user can mend; see `common.errors`.
    """
    params = epochs.resolve(params, task)
    return execute(
        lambda: experiment_runner.OrbitExperimentRunner(
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
            hooks=hooks,
        ),
        strategy=distribution_strategy,
        params=params,
        mode=mode,
        model_dir=model_dir,
    )


def execute(
    build_runner: Callable[[], experiment_runner.OrbitExperimentRunner],
    *,
    strategy: tf.distribute.Strategy | None,
    params: config_definitions.ExperimentConfig,
    mode: str,
    model_dir: str,
) -> tuple[keras.Model, experiment_runner.Logs]:
    """Builds and runs a runner under the config's seed and precision, and records the run."""
    # Before the record, which is the first thing that is written.
    run_checks.check(params, mode)
    run_checks.check_evaluation(params, mode, model_dir)
    run_checks.check_own_checkpoint(model_dir)
    with (
        preemption.catch_signals(),
        run_record.RunRecord(
            params, mode, model_dir, is_chief=directories.is_chief(strategy)
        ) as record,
        runtime.seed_and_precision(params.runtime),
    ):
        runner = build_runner()
        try:
            with reachability.name_the_lost():
                return runner.run()
        finally:
            # What other processes held has gone with them.
            if not isinstance(sys.exception(), errors.ClusterError):
                step = int(runner.trainer.global_step.numpy())
                note_results(record, step, runner.trainer.model)


def note_results(record: run_record.RunRecord, global_step: int, model: keras.Model | None) -> None:
    """Puts how far a run has come into its record, and how large the model is if there is one."""
    record.note(global_step=global_step)
    if model is not None:
        record.note(num_parameters=model_summary.try_count_params(model))
