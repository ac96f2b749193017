"""The base class of all stages."""

from typing import Any

from official_lite.pipeline.context import ExperimentContext

__all__ = ["Stage"]


class Stage:
    """The base class of stages. A stage is created right before it is called.

    Args:
        ctx: The context, also passed to `__call__`. The base class does not store it, so subclasses
            need not call `super().__init__`.
    """

    def __init__(self, ctx: ExperimentContext) -> None:
        """Accept the context without storing it."""

    def __call__(self, ctx: ExperimentContext) -> str | None:
        """Run the stage.

        Returns:
            The name of a later stage to run next; None for the following stage.
        """
        # Not abstract: `view` works without it, and this error names the incomplete class.
        raise NotImplementedError(f"{type(self).__name__} has no `__call__`.")

    @classmethod
    def view(cls, ctx: ExperimentContext) -> Any:
        """Return the context in the form that this stage receives."""
        return ctx
