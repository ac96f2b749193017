"""The hook that prunes or clusters the weights when it is due."""

from typing import Any

from absl import logging

from official_lite import orbit, telemetry
from official_lite.compression.weight_projection import WeightProjection
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import triggers

__all__ = ["ProjectionHook"]


class ProjectionHook(orbit.Hook):
    """Updates a projection at its steps, and reports what it has done.

    Args:
        name: The name of its config, `pruning` or `clustering`.
        projection: The projection.
    """

    def __init__(self, name: str, projection: WeightProjection) -> None:
        self.name = name
        self._projection = projection

    def build_trigger(self) -> triggers.Trigger:
        return triggers.AtSteps(self._projection.steps)

    def before_train(self) -> None:
        if self.controller.step == 0 in self._projection.steps:
            self._update()

    def after_step(self) -> None:
        self._update()

    def _update(self) -> None:
        trainer: Any = self.trainer
        average = ema_optimizer.get_moving_average(trainer.optimizer)
        numbers = self._projection.update(self.controller.step, average)
        for name, value in numbers.items():
            telemetry.put_scalar(f"{self.name}/{name}", value, smoothing_hint=False)
        logging.info("Step %d, %s: %s", self.controller.step, self.name, numbers)
