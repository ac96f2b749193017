"""The actions of a run: what happens after each training interval and each evaluation."""

import math
import os
from typing import Any

import gin
import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.checkpoint import async_checkpoint_manager, directories
from official_lite.common import errors
from official_lite.core import base_trainer, config_definitions
from official_lite.modeling.optimization import ema_optimizer

__all__ = [
    "EMACheckpointing",
    "RecoveryAction",
    "RecoveryCondition",
    "get_eval_actions",
    "get_train_actions",
]


class EMACheckpointing:
    """Saves a checkpoint with the averaged weights in the place of the trained ones.

    They go to `<export_dir>/ema_checkpoints/average_weights-<step>`.
    """

    def __init__(
        self,
        export_dir: str,
        optimizer: keras.optimizers.Optimizer,
        checkpoint: tf.train.Checkpoint,
        max_to_keep: int = 1,
    ) -> None:
        """Finds the average in the optimizer.

        Raises:
            ValueError: If the optimizer keeps none.
        """
        average = ema_optimizer.get_moving_average(optimizer)
        if average is None:
            raise errors.ConfigValueError(
                f"The optimizer, {type(optimizer).__name__}, keeps no moving average: wanted an "
                "`optimization.ExponentialMovingAverage`. Set `optimizer_config.ema`."
            )
        self._average = average
        self._checkpoint_manager = async_checkpoint_manager.AsyncCheckpointManager(
            checkpoint,
            directory=directories.writable_directory(os.path.join(export_dir, "ema_checkpoints")),
            max_to_keep=max_to_keep,
            checkpoint_name="average_weights",
        )

    def __call__(self, output: orbit.runner.Output | None = None) -> None:
        """Saves. The trained weights come back even if saving fails."""
        with (
            ema_optimizer.averaged_weights(self._average),
            self._average.following_weights(),
        ):
            self._checkpoint_manager.save(checkpoint_number=self._average.iterations.numpy())


class RecoveryAction:
    """Goes back to the last checkpoint."""

    def __init__(self, checkpoint_manager: tf.train.CheckpointManager) -> None:
        self.checkpoint_manager = checkpoint_manager

    def __call__(self, _: orbit.runner.Output) -> None:
        """Restores.

        Raises:
            errors.DivergedError: If there is no checkpoint yet.
        """
        path = self.checkpoint_manager.restore_or_initialize()
        if path is None:
            raise errors.DivergedError(
                "The training blew up before its first checkpoint, so there is nothing to go back "
                "to. Lower the learning rate, or `trainer.checkpoint_interval`."
            )
        logging.warning("Recovering the model from checkpoint: %s.", path)


class RecoveryCondition:
    """Whether the loss blew up: it is not finite, or above a bound.

    Args of the constructor are the fields of the same names in `TrainerConfig`.
    """

    def __init__(
        self,
        global_step: tf.Variable,
        loss_upper_bound: float,
        recovery_begin_steps: int = 0,
        recovery_max_trials: int = 3,
    ) -> None:
        self.recover_counter = 0
        self.recovery_begin_steps = recovery_begin_steps
        self.recovery_max_trials = recovery_max_trials
        self.loss_upper_bound = loss_upper_bound
        self.global_step = global_step

    def __call__(self, outputs: orbit.runner.Output) -> bool:
        """Looks at `outputs["training_loss"]`.

        Raises:
            errors.DivergedError: If it blew up more often than `recovery_max_trials` allows.
        """
        if "training_loss" not in outputs:
            return False
        # Of several values, such as one from each replica, the worst decides; NaN is the worst.
        loss = float(np.max(orbit.utils.get_value(outputs["training_loss"])))
        step = int(orbit.utils.get_value(self.global_step))
        if not self._is_blow_up(loss, step):
            return False
        self.recover_counter += 1
        if self.recover_counter > self.recovery_max_trials:
            raise errors.DivergedError(
                f"The training loss is {loss} at step {step} (bound: {self.loss_upper_bound}); it "
                f"blew up {self.recover_counter} times, and `trainer.recovery_max_trials` is "
                f"{self.recovery_max_trials}."
            )
        return True

    def _is_blow_up(self, loss: float, step: int) -> bool:
        if not math.isfinite(loss):
            return True
        return step >= self.recovery_begin_steps and loss > self.loss_upper_bound


@gin.configurable
def get_eval_actions(
    params: config_definitions.ExperimentConfig,
    trainer: base_trainer.Trainer,
    model_dir: str,
) -> list[orbit.Action]:
    """What happens after each evaluation."""
    if ema_optimizer.get_moving_average(trainer.optimizer) is None:
        return []
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
    """What happens after each reporting interval of training, before anything is saved."""
    del model_dir
    config = params.trainer
    actions: list[orbit.Action] = []
    if config.recovery_max_trials >= 0:
        condition = RecoveryCondition(
            global_step=trainer.global_step,
            loss_upper_bound=config.loss_upper_bound,
            recovery_begin_steps=config.recovery_begin_steps,
            recovery_max_trials=config.recovery_max_trials,
        )
        actions.append(
            orbit.actions.ConditionalAction(condition, RecoveryAction(checkpoint_manager))
        )
    if config.preemption_on_demand_checkpoint and _cluster_resolver(trainer):
        actions.append(
            orbit.actions.SaveCheckpointIfPreempted(
                _cluster_resolver(trainer),
                checkpoint_manager,
                trainer.global_step,
                keep_running_after_save=True,
            )
        )
    return actions


def _cluster_resolver(trainer: base_trainer.Trainer) -> Any:
    return trainer.strategy.cluster_resolver
