"""A writer that works while training goes on."""

import atexit
import os
import queue
import threading
from collections.abc import Callable

from official_lite.telemetry import writer
from official_lite.telemetry.record import Record


class AsyncWriter(writer.Writer):
    """Hands records to a writer in a thread of their own, one after another in their order.

    Only `sync` and `close` wait for all of them; `flush` has them flushed when their turn has come.
    When `max_records` wait, `write` waits too. An error of the writer comes up in the next call of
    one of its methods, several at once as an `ExceptionGroup`; the records after it are written all
    the same. What is still waiting when the process ends is written then. In a process that was
    forked off nothing is waiting: those records are its parent's.

    Args:
      inner: Where the records go; it is closed with this writer.
      max_records: How many records may wait.
    """

    def __init__(self, inner: writer.Writer, *, max_records: int = 100) -> None:
        self._inner = inner
        self._max_records = max_records
        self._thread: _Thread | None = None

    def write(self, record: Record) -> None:
        self._started().put(lambda: self._inner.write(record))
        self._raise_errors()

    def flush(self) -> None:
        if self._thread is not None and not self._thread.is_of_another_process:
            self._thread.put(self._inner.flush)
        self._raise_errors()

    def sync(self) -> None:
        """Wait until everything written so far is durable."""
        if self._thread is None or self._thread.is_of_another_process:
            self._inner.sync()
            return
        self._thread.put_and_wait(self._inner.sync)
        self._raise_errors()

    def rewind(self, step: int) -> None:
        self._started().put(lambda: self._inner.rewind(step))
        self._raise_errors()

    def close(self) -> None:
        errors = self._stop()
        try:
            self._inner.close()
        except BaseException as error:  # It comes up below, together with those of the thread.
            errors.append(error)
        _raise_all(errors)

    def _started(self) -> "_Thread":
        if self._thread is None or self._thread.is_of_another_process:
            self._thread = _Thread(self._max_records)
            # It would die in the middle of what it does.
            atexit.register(self._close_at_exit)
        return self._thread

    def _stop(self) -> list[BaseException]:
        atexit.unregister(self._close_at_exit)
        thread, self._thread = self._thread, None
        if thread is None or thread.is_of_another_process:
            return []
        thread.stop()
        return thread.take_errors()

    def _raise_errors(self) -> None:
        if self._thread is not None:
            _raise_all(self._thread.take_errors())

    def _close_at_exit(self) -> None:
        # A process that was forked off ends too, and the writer is its parent's.
        if self._thread is not None and not self._thread.is_of_another_process:
            self.close()


class _Thread:
    """Does what it is given in order, and keeps the errors."""

    def __init__(self, max_waiting: int) -> None:
        self._process = os.getpid()
        self._errors: list[BaseException] = []
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue(max_waiting)
        # A daemon: a process that ends without `close` would otherwise wait for it for ever.
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    @property
    def is_of_another_process(self) -> bool:
        return self._process != os.getpid()

    def put(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)

    def put_and_wait(self, task: Callable[[], None]) -> None:
        is_done = threading.Event()
        self.put(task)
        self.put(is_done.set)
        # Another thread may stop this one before it comes to that.
        while not is_done.wait(timeout=0.1) and self._thread.is_alive():
            pass

    def stop(self) -> None:
        self._tasks.put(None)
        self._thread.join()

    def take_errors(self) -> list[BaseException]:
        errors, self._errors = self._errors, []
        return errors

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:  # Nobody sees it here; the next caller will.
                self._errors.append(error)


def _raise_all(errors: list[BaseException]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BaseExceptionGroup("A writer in the background failed several times.", errors)
