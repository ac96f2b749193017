"""The base of all stages."""

from typing import Any

from official_lite.pipeline.context import ExperimentContext

__all__ = ["Stage"]


class Stage:
    """One part of a run. It is made right before it is called, with the same context."""

    def __init__(self, ctx: ExperimentContext) -> None:
        """Nothing is kept; a subclass need not call this."""

    def __call__(self, ctx: ExperimentContext) -> str | None:
        """Does it.

        Returns:
            The name of a later stage to go on with; None for the next one.
        """
        # Not abstract: its `view` can be had without, and this names the class that lacks the work.
        raise NotImplementedError(f"{type(self).__name__} has no `__call__`.")

    @classmethod
    def view(cls, ctx: ExperimentContext) -> Any:
        """The context as this stage gets to see it."""
        return ctx
