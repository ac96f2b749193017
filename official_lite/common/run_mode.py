"""The mode of a run, which determines whether it trains, evaluates, predicts or searches."""

import enum

from official_lite.common import errors, suggestions

__all__ = ["Mode"]


class Mode(enum.StrEnum):
    """The mode of a run, with the value that `--mode` accepts."""

    TRAIN = "train"
    EVAL = "eval"
    TRAIN_AND_EVAL = "train_and_eval"
    CONTINUOUS_EVAL = "continuous_eval"
    CONTINUOUS_TRAIN_AND_EVAL = "continuous_train_and_eval"
    TRAIN_AND_POST_EVAL = "train_and_post_eval"
    PREDICT = "predict"
    SEARCH = "search"

    @classmethod
    def parse(cls, name: str) -> "Mode":
        """Return the mode with this name.

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
        """Return whether the run changes weights and therefore owns its model directory."""
        return "train" in self.value

    @property
    def evaluates(self) -> bool:
        """Return whether the run evaluates."""
        return "eval" in self.value

    @property
    def evaluates_last(self) -> bool:
        """Return whether the run ends with an evaluation that is not part of training."""
        return self in (Mode.EVAL, Mode.CONTINUOUS_EVAL, Mode.TRAIN_AND_POST_EVAL)

    @property
    def predicts(self) -> bool:
        """Return whether the run writes predictions and therefore owns their directory."""
        return self is Mode.PREDICT

    @property
    def searches(self) -> bool:
        """Return whether the run consists of the trials of a study."""
        return self is Mode.SEARCH

    @property
    def is_a_single_run(self) -> bool:
        """Return whether the run is a single one, in one model directory."""
        return self not in (Mode.SEARCH, Mode.CONTINUOUS_TRAIN_AND_EVAL)
