"""Actions that run after each training interval and after each evaluation."""

import os
from typing import Any

import gin
import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.checkpoint import async_checkpoint_manager, directories
from official_lite.common import errors, preemption
from official_lite.core import base_trainer, config_definitions
from official_lite.modeling.optimization import ema_optimizer
from official_lite.run import recovery

__all__ = [
    "EMACheckpointing",
    "RecoveryAction",
    "RecoveryCondition",
    "get_eval_actions",
    "get_train_actions",
]

# The Model Garden exposes these names in this module.
RecoveryAction = recovery.RecoveryAction
RecoveryCondition = recovery.RecoveryCondition


class EMACheckpointing:
    """Saves checkpoints that hold the averaged weights in place of the trained ones.

    The checkpoints are written to `<export_dir>/ema_checkpoints/average_weights-<step>`.

    Args:
        export_dir: The parent directory of the `ema_checkpoints` directory.
        optimizer: The optimizer that keeps the moving average.
        checkpoint: The checkpoint to save.
        max_to_keep: The number of checkpoints to keep.

    Raises:
        ValueError: If the optimizer keeps no moving average.
    """

    def __init__(
        self,
        export_dir: str,
        optimizer: keras.optimizers.Optimizer,
        checkpoint: tf.train.Checkpoint,
        max_to_keep: int = 1,
    ) -> None:
        if not ema_optimizer.keeps_averages(optimizer):
            raise errors.ConfigValueError(
                f"The optimizer, {type(optimizer).__name__}, keeps no moving average. Expected an "
                "`optimization.ExponentialMovingAverage`; set `optimizer_config.ema`."
            )
        self._optimizer = optimizer
        self._checkpoint_manager = async_checkpoint_manager.AsyncCheckpointManager(
            checkpoint,
            directory=directories.writable_directory(os.path.join(export_dir, "ema_checkpoints")),
            max_to_keep=max_to_keep,
            checkpoint_name="average_weights",
        )

    def __call__(self, output: orbit.runner.Output | None = None) -> None:
        """Save a checkpoint; the trained weights are put back even if saving fails."""
        with ema_optimizer.evaluated_state(self._optimizer):
            number = tf.convert_to_tensor(self._optimizer.iterations)
            self._checkpoint_manager.save(checkpoint_number=int(number))


@gin.configurable
def get_eval_actions(
    params: config_definitions.ExperimentConfig,
    trainer: base_trainer.Trainer,
    model_dir: str,
) -> list[orbit.Action]:
    """Return the actions that run after each evaluation."""
    if not ema_optimizer.keeps_averages(trainer.optimizer):
        return []
    # The strategy's scope determines which worker is the chief; only its files are kept.
    with trainer.strategy.scope():
        return [
            EMACheckpointing(
                export_dir=model_dir,
                optimizer=trainer.optimizer,
                checkpoint=trainer.checkpoint,
                max_to_keep=params.trainer.max_to_keep,
            )
        ]


@gin.configurable
def get_train_actions(
    params: config_definitions.ExperimentConfig,
    trainer: base_trainer.Trainer,
    model_dir: str,
    checkpoint_manager: tf.train.CheckpointManager,
) -> list[orbit.Action]:
    """Return the actions that run after each reporting interval, before a checkpoint is saved."""
    config = params.trainer
    actions: list[orbit.Action] = []
    if config.recovery_max_trials >= 0:
        actions.append(_recovery(config, trainer, model_dir, checkpoint_manager))
    # If this process catches signals, the workers already agree on the step at which to stop.
    # TensorFlow's handler would then wait for a worker that has exited, and print a traceback.
    waits_for_notice = config.preemption_on_demand_checkpoint and not preemption.is_caught()
    if waits_for_notice and _cluster_resolver(trainer):
        actions.append(
            orbit.actions.SaveCheckpointIfPreempted(
                _cluster_resolver(trainer),
                checkpoint_manager,
                trainer.global_step,
                keep_running_after_save=True,
            )
        )
    return actions


def _recovery(
    config: config_definitions.TrainerConfig,
    trainer: base_trainer.Trainer,
    model_dir: str,
    checkpoint_manager: tf.train.CheckpointManager,
) -> orbit.actions.ConditionalAction:
    # A plain Orbit trainer does not expose its data or its weights, and several tasks have several
    # positions.
    is_ours = isinstance(trainer, base_trainer.Trainer) and hasattr(trainer, "task")

    # Checking variables that live on parameter servers would mean fetching them first.
    state = recovery.NonfiniteCheck(trainer) if is_ours and not trainer.has_coordinator else None

    def is_bad(output: orbit.runner.Output) -> bool:
        what = recovery.describe_blow_up(
            output,
            trainer.global_step,
            config.loss_upper_bound,
            config.recovery_begin_steps,
            state,
        )
        return what is not None

    action = RecoveryAction(checkpoint_manager, trainer if is_ours else None, is_bad)
    condition = RecoveryCondition(
        global_step=trainer.global_step,
        loss_upper_bound=config.loss_upper_bound,
        recovery_begin_steps=config.recovery_begin_steps,
        recovery_max_trials=config.recovery_max_trials,
        model_dir=model_dir,
        state=state,
        find_bad_step=action.find_bad_step,
        find_bad_input=action.find_bad_input,
    )
    return orbit.actions.ConditionalAction(condition, action)


def _cluster_resolver(trainer: base_trainer.Trainer) -> Any:
    return trainer.strategy.cluster_resolver
