"""A writer that combines several writers."""

import contextlib
from collections.abc import Callable, Iterable

from official_lite.telemetry import writer
from official_lite.telemetry.record import Record


class MultiWriter(writer.Writer):
    """Passes every call to each of `writers`, in order.

    If a writer fails, the remaining writers are still called; its error is raised afterwards.
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
        # An exit stack runs all of its callbacks even if some raise, in reverse order.
        with contextlib.ExitStack() as stack:
            for one in reversed(self._writers):
                stack.callback(act, one)
