"""The mode of a run: what it does."""

import enum

from official_lite.common import errors, suggestions

__all__ = ["Mode"]


class Mode(enum.StrEnum):
    """What a run does, under the name that `--mode` has for it."""

    TRAIN = "train"
    EVAL = "eval"
    TRAIN_AND_EVAL = "train_and_eval"
    CONTINUOUS_EVAL = "continuous_eval"
    CONTINUOUS_TRAIN_AND_EVAL = "continuous_train_and_eval"
    TRAIN_AND_POST_EVAL = "train_and_post_eval"
    SEARCH = "search"

    @classmethod
    def parse(cls, name: str) -> "Mode":
        """Return the mode of a name.

        Raises:
            errors.UnknownNameError: There is no such mode.
        """
        try:
            return cls(name)
        except ValueError:
            raise errors.UnknownNameError(
                f"The mode {name!r} is not implemented. {suggestions.did_you_mean(name, list(cls))}"
            ) from None

    @property
    def trains(self) -> bool:
        """Whether the run changes weights, and so owns its model directory."""
        return "train" in self.value

    @property
    def evaluates(self) -> bool:
        """Whether the run evaluates."""
        return "eval" in self.value

    @property
    def evaluates_last(self) -> bool:
        """Whether the run ends with an evaluation that is not a part of the training."""
        return self in (Mode.EVAL, Mode.CONTINUOUS_EVAL, Mode.TRAIN_AND_POST_EVAL)

    @property
    def searches(self) -> bool:
        """Whether the run consists of the trials of a study."""
        return self is Mode.SEARCH

    @property
    def is_a_single_run(self) -> bool:
        """Whether the run has one training or evaluation in one model directory."""
        return self not in (Mode.SEARCH, Mode.CONTINUOUS_TRAIN_AND_EVAL)
