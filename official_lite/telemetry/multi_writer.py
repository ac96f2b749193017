"""Many writers as one."""

import contextlib
from collections.abc import Callable, Iterable

from official_lite.telemetry import writer
from official_lite.telemetry.record import Record


class MultiWriter(writer.Writer):
    """Hands everything to each of `writers`, in order.

    A writer that fails does not keep the others from their work: its error is raised when all
    have had their turn.
    """

    def __init__(self, writers: Iterable[writer.Writer]) -> None:
        self._writers = tuple(writers)

    def write(self, record: Record) -> None:
        self._each(lambda one: one.write(record))

    def flush(self) -> None:
        self._each(lambda one: one.flush())

    def sync(self) -> None:
        self._each(lambda one: one.sync())

    def rewind(self, step: int) -> None:
        self._each(lambda one: one.rewind(step))

    def close(self) -> None:
        self._each(lambda one: one.close())

    def _each(self, act: Callable[[writer.Writer], None]) -> None:
        # An exit stack runs all its callbacks, whatever they raise, the last one pushed first.
        with contextlib.ExitStack() as stack:
            for one in reversed(self._writers):
                stack.callback(act, one)
