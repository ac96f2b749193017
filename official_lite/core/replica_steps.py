"""What one replica computes in a step of training or of evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.common import user_code
from official_lite.core import step_checks
from official_lite.execution import split_step
from official_lite.modeling import moving_statistics, step_seeds
from official_lite.modeling.optimization import gradient_accumulator

if TYPE_CHECKING:
    from official_lite.core import base_trainer

__all__ = ["ReplicaSteps"]


class ReplicaSteps:
    """The steps of a trainer's task on one replica: the trainer runs them on all.

    Args:
        trainer: Whose task, model and optimizer they are; it counts their losses and steps.
        metrics: The task's metrics, of training (True) and of evaluation (False).
        accumulator: Collects the gradients of micro-batches, if an update is made of several.

    Attributes:
        graph_hooks: Are traced into every training step.
    """

    def __init__(
        self,
        trainer: base_trainer.Trainer,
        metrics: Mapping[bool, Sequence[keras.metrics.Metric]],
        accumulator: gradient_accumulator.GradientAccumulator | None,
    ) -> None:
        self._trainer = trainer
        self._metrics = metrics
        self._accumulator = accumulator
        self._split_train_step = split_step.create_split_train_step(
            trainer.task, metrics.get(True, [])
        )
        self._seeds = step_seeds.StepSeeds(trainer.model, trainer.config.runtime.seed)
        self._moving_statistics = moving_statistics.MovingStatistics(trainer.model)
        self.graph_hooks: list[orbit.GraphHook] = []

    @property
    def accumulates(self) -> bool:
        """Whether `begin_step`, `micro_step`s and `flush` make an update, not one `train_step`."""
        return self._accumulator is not None

    def begin_step(self) -> None:
        """Comes before the first batch of an update."""
        self._seeds.set(self._trainer.global_step.read_value())

    def train_step(self, inputs: Any) -> None:
        """Makes an update from a batch."""
        self.begin_step()
        self._learn(inputs, self._trainer.optimizer)
        self._end_step()

    def micro_step(self, inputs: Any) -> None:
        """Collects the gradients of a micro-batch."""
        self._learn(inputs, self._accumulator)

    def flush(self) -> None:
        """Makes an update from the gradients that were collected."""
        cast(gradient_accumulator.GradientAccumulator, self._accumulator).flush()
        self._end_step()

    def eval_step(self, inputs: Any) -> dict[str, Any]:
        """Evaluates a batch, which may be empty."""
        trainer = self._trainer
        logs = user_code.converted(trainer.task.validation_step)(
            inputs, model=trainer.model, metrics=self._metrics[False]
        )
        if trainer.task.loss in logs:
            trainer.validation_loss.update_state(logs[trainer.task.loss], batch=inputs)
        return logs

    def show_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        """Shows the hooks an update's gradients, summed over the replicas."""
        for hook in self.graph_hooks:
            shown = grads_and_vars
            if not getattr(hook, "takes_rows", False):
                shown = [(tf.convert_to_tensor(g), v) for g, v in grads_and_vars]
            user_code.converted(hook.on_gradients)(shown)

    def _end_step(self) -> None:
        self._moving_statistics.average()
        self._trainer.global_step.assign_add(1)

    def _learn(self, inputs: Any, optimizer: Any) -> None:
        trainer = self._trainer
        with step_checks.watched_for_training_mode(trainer.model, type(trainer.task).__name__):
            logs = self._task_train_step()(
                inputs, model=trainer.model, optimizer=optimizer, metrics=self._metrics[True]
            )
        trainer.train_loss.update_state(logs[trainer.task.loss])
        for hook in self.graph_hooks:
            user_code.converted(hook.call)(logs)

    def _task_train_step(self) -> Callable[..., Mapping[str, Any]]:
        trainer = self._trainer
        if trainer.execution == "xla" and trainer.strategy.num_replicas_in_sync > 1:
            return self._split_train_step
        return user_code.converted(trainer.task.train_step)
