"""The fourth stage."""

from collections.abc import Mapping
from typing import Any

from official_lite.pipeline.context import ExperimentContext
from official_lite.pipeline.stage import Stage

__all__ = ["Run"]


class Run(Stage):
    """Trains and evaluates, as the mode says. Called in the strategy's scope.

    Its two parts can be overridden by themselves. For another inner loop under the same outer
    one, override `train_step` or `run_steps` of the trainer instead.
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        runner = ctx.require("runner")
        ctx.logs = runner.run_mode(lambda: self.train(ctx), lambda: self.evaluate(ctx))
        ctx.params = runner.params
        return None

    def train(self, ctx: ExperimentContext) -> Mapping[str, Any] | None:
        """Trains to the end, with the evaluations on the way that the mode asks for.

        Returns:
            The metrics of the last evaluation; None if there was none.
        """
        logs: Mapping[str, Any] | None = ctx.require("runner").train()
        return logs

    def evaluate(self, ctx: ExperimentContext) -> Mapping[str, Any] | None:
        """Evaluates the current state, or in `continuous_eval` every checkpoint.

        Returns:
            The metrics of the last evaluation.
        """
        logs: Mapping[str, Any] | None = ctx.require("runner").evaluate()
        return logs
