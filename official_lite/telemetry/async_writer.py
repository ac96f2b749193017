"""A writer that writes in a background thread while training continues."""

import atexit
import os
import queue
import threading
from collections.abc import Callable

from official_lite.telemetry import writer
from official_lite.telemetry.record import Record


class AsyncWriter(writer.Writer):
    """A writer that passes records to another writer in a background thread, in order.

    Only `sync` and `close` wait until all records are written; `flush` only queues a flush of the
    inner writer. When `max_records` records are waiting, `write` blocks too. An error raised by the
    inner writer is raised by the next call of any method of this writer, and several errors are
    raised together as an `ExceptionGroup`. Records that follow a failed one are still written.
    Records that are still waiting when the process exits are written at exit. A forked process
    starts with an empty queue: the waiting records belong to its parent.

    Args:
      inner: The writer that receives the records. It is closed together with this writer.
      max_records: Maximum number of records that may wait.
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
        except BaseException as error:  # Raised below, together with the thread's errors.
            errors.append(error)
        _raise_all(errors)

    def _started(self) -> "_Thread":
        if self._thread is None or self._thread.is_of_another_process:
            self._thread = _Thread(self._max_records)
            # The daemon thread would otherwise be killed in the middle of a write when the process
            # exits.
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
        # A forked process also runs the exit handlers, but the writer belongs to its parent.
        if self._thread is not None and not self._thread.is_of_another_process:
            self.close()


class _Thread:
    """A background thread that runs tasks in order and collects their errors."""

    def __init__(self, max_waiting: int) -> None:
        self._process = os.getpid()
        self._errors: list[BaseException] = []
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue(max_waiting)
        # A daemon thread, because a process that ends without `close` would otherwise wait forever.
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
            except BaseException as error:  # Raised by the next call of the writer.
                self._errors.append(error)


def _raise_all(errors: list[BaseException]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BaseExceptionGroup("A writer in the background failed several times.", errors)
