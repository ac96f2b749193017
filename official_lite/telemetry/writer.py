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
