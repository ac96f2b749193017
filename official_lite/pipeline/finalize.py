"""The last stage, which runs after success and after failure."""

from official_lite.pipeline.context import ExperimentContext
from official_lite.pipeline.stage import Stage

__all__ = ["Finalize"]


class Finalize(Stage):
    """The stage that always runs once at the end. By default it prints a summary after a success.

    When it runs, all files of the run except the log and `run.json` are complete and closed.
    `ctx.error` is the error that ended the run. Fields of the context that the run has not set are
    None.
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        if ctx.error is None and ctx.runner is not None:
            ctx.runner.show_summary()
        return None
