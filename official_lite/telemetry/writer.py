"""The interface of writers."""

import abc
import types
from typing import Self

from official_lite.telemetry.record import Record


class Writer(abc.ABC):
    """Base class of writers, which receive the records of a run.

    A writer is a context manager that closes itself on exit. In a job with several workers, create
    writers only on the chief: they write files.
    """

    @abc.abstractmethod
    def write(self, record: Record) -> None:
        """Write one record, which may be buffered until `flush`."""

    def flush(self) -> None:  # noqa: B027 - most writers buffer nothing
        """Make everything written so far visible to readers."""

    def sync(self) -> None:
        """Make everything written so far durable, before a checkpoint is committed.

        This method may be called by the thread that saves. Afterwards, every record up to the step
        of the checkpoint survives a killed process or a power loss. Writers of files override it;
        the default implementation calls `flush`.
        """
        self.flush()

    def rewind(self, step: int) -> None:  # noqa: B027 - what is on a screen stays there
        """Remove the records after `step`, because training restarts from there.

        Writers of files override this method, so that steps that are trained again are recorded
        once. If a record of `step` itself is written again, for example by a repeated evaluation,
        it replaces the earlier record.

        Args:
          step: The step of the restored state.
        """

    def close(self) -> None:
        """Flush and release files; may be called more than once."""
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
