"""The first stage."""

from official_lite.pipeline.context import ExperimentContext
from official_lite.pipeline.stage import Stage

__all__ = ["Prepare"]


class Prepare(Stage):
    """Runs before strategy, precision and task are there. By default there is nothing to do.

    The place for downloads, environment variables and changes of `ctx.params`. Epochs are steps by
    now if the config itself says how long one is; see `docs/stages.md` for how to say them anew.
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        return None
