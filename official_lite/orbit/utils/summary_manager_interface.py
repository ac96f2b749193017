"""The interface through which a controller calls summary managers."""

import abc
from collections.abc import Mapping
from typing import Any


class SummaryManagerInterface(abc.ABC):
    """Writes the outputs of a trainer or an evaluator as summaries."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Write all buffered data."""

    @abc.abstractmethod
    def summary_writer(self, relative_path: str = "") -> Any:
        """Return the `tf.summary.SummaryWriter` of a directory below the root."""

    def sync(self) -> None:
        """Make everything written so far durable; see `telemetry.Writer.sync`."""
        self.flush()

    def mark_checkpoint(self, step: int) -> None:  # noqa: B027 - only files need marks
        """Mark everything written before the state of `step` is saved."""

    def rewind(self, step: int) -> None:  # noqa: B027 - only files can be rewound
        """Remove everything written after `step`; see `telemetry.Writer.rewind`."""

    @abc.abstractmethod
    def write_summaries(self, summary_dict: Mapping[str, Any]) -> None:
        """Write the values at the current step, each nested mapping to a directory of its name."""
