"""The third stage."""

from absl import logging

from official_lite.pipeline.context import ExperimentContext
from official_lite.pipeline.stage import Stage

__all__ = ["Initialize"]


class Initialize(Stage):
    """Gives the weights their values: the run's own checkpoint, pretrained ones, or random ones.

    Afterwards the global step is that of the checkpoint, or 0.
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        self.load(ctx)
        return None

    def load(self, ctx: ExperimentContext) -> str | None:
        """Restores the newest checkpoint of `model_dir`; without one, `task.init_checkpoint`.

        Which of them it was, it logs.

        Returns:
            The path of the run's own checkpoint; None if it has none.
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
