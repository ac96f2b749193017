"""What a controller asks of a summary manager."""

import abc
from collections.abc import Mapping
from typing import Any


class SummaryManagerInterface(abc.ABC):
    """Writes the outputs of a trainer or an evaluator as summaries."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Writes out what is buffered."""

    @abc.abstractmethod
    def summary_writer(self, relative_path: str = "") -> Any:
        """The `tf.summary.SummaryWriter` of a folder below the root."""

    @abc.abstractmethod
    def write_summaries(self, summary_dict: Mapping[str, Any]) -> None:
        """Writes the values at the current step, each nested mapping to a folder of its name."""
