"""The last stage."""

from official_lite.pipeline.context import ExperimentContext
from official_lite.pipeline.stage import Stage

__all__ = ["Finalize"]


class Finalize(Stage):
    """Runs once, however the run ended. By default it prints the last numbers after a success.

    All files of the run but its log and `run.json` are complete and closed by now. `ctx.error` is
    what ended the run; what the run had not made by then is None in the context.
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        if ctx.error is None and ctx.runner is not None:
            ctx.runner.show_summary()
        return None
