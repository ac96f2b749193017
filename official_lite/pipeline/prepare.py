"""The first stage, which runs before anything is built."""

from official_lite.pipeline.context import ExperimentContext
from official_lite.pipeline.stage import Stage

__all__ = ["Prepare"]


class Prepare(Stage):
    """The stage that runs before the strategy, precision and task are set. It is empty by default.

    Override it to download data, set environment variables or change `ctx.params`. If the config
    gives the length of an epoch, epochs have already been converted to steps; see `docs/stages.md`
    for how to change them here.
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        return None
