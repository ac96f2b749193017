"""The interface of everything that takes records."""

import abc
import types
from typing import Self

from official_lite.telemetry.record import Record


class Writer(abc.ABC):
    """Puts records somewhere. As a context manager it closes itself.

    On several workers give writers to the chief only: they write files.
    """

    @abc.abstractmethod
    def write(self, record: Record) -> None:
        """Takes one record; it may be buffered until `flush`."""

    def flush(self) -> None:  # noqa: B027 - most writers buffer nothing
        """Makes everything written so far visible to readers."""

    def sync(self) -> None:
        """Make everything written so far durable, since a checkpoint is about to count.

        It may be called by the thread that saves. After it, a process that is killed or loses
        power still has every record up to the step of the checkpoint. A writer of files overrides
        it; by default it flushes.
        """
        self.flush()

    def rewind(self, step: int) -> None:  # noqa: B027 - what is on a screen stays there
        """Remove the records after `step`, from which training starts again.

        A writer of files overrides it, so that a step that is trained again is recorded once. A
        record of `step` itself that is written again afterwards, such as that of an evaluation
        that is repeated, replaces the one before.

        Args:
          step: The step of the state that was restored.
        """

    def close(self) -> None:
        """Flushes and lets go of files. May be called more than once."""
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.close()
