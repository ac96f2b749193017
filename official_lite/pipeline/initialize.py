"""The third stage, which initializes the weights."""

from absl import logging

from official_lite.pipeline.context import ExperimentContext
from official_lite.pipeline.stage import Stage

__all__ = ["Initialize"]


class Initialize(Stage):
    """The stage that initializes the weights: from the run's checkpoint, pretrained, or randomly.

    Afterwards the global step is that of the run's checkpoint, or 0.
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        self.load(ctx)
        return None

    def load(self, ctx: ExperimentContext) -> str | None:
        """Restore the latest checkpoint in `model_dir`, or else `task.init_checkpoint`.

        The source of the weights is logged.

        Returns:
            The path of the run's own checkpoint; None if there is none.
        """
        path: str | None = ctx.require("runner").restore()
        self._log(ctx, path)
        return path

    def _log(self, ctx: ExperimentContext, path: str | None) -> None:
        pretrained = getattr(ctx.params.task, "init_checkpoint", "")
        if path is not None:
            total = ctx.params.trainer.train_steps
            logging.info("initialize: resumed at step %d of %d", ctx.global_step, total)
        elif pretrained:
            logging.info("initialize: warm start from %s", pretrained)
        else:
            logging.info("initialize: cold start")
