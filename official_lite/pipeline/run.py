"""The fourth stage, which trains and evaluates."""

from collections.abc import Mapping
from typing import Any

from official_lite.pipeline.context import ExperimentContext
from official_lite.pipeline.stage import Stage

__all__ = ["Run"]


class Run(Stage):
    """The stage that trains and evaluates, depending on the mode, in the strategy's scope.

    `train` and `evaluate` can be overridden separately. To change only the inner loop, override
    `train_step` or `run_steps` of the trainer instead.
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        runner = ctx.require("runner")
        ctx.logs = runner.run_mode(lambda: self.train(ctx), lambda: self.evaluate(ctx))
        ctx.params = runner.params
        return None

    def train(self, ctx: ExperimentContext) -> Mapping[str, Any] | None:
        """Train to the end, with the evaluations that the mode requires.

        Returns:
            The metrics of the last evaluation; None if there was none.
        """
        logs: Mapping[str, Any] | None = ctx.require("runner").train()
        return logs

    def evaluate(self, ctx: ExperimentContext) -> Mapping[str, Any] | None:
        """Evaluate the current state, or every checkpoint in the mode `continuous_eval`.

        Returns:
            The metrics of the last evaluation.
        """
        logs: Mapping[str, Any] | None = ctx.require("runner").evaluate()
        return logs
