"""A lock that allows only one process at a time to train, or to predict, in a directory.

The file `.lock` names that process, which rewrites the file every few seconds. The lock is stale if
that process is dead. A process on the same host detects this at once; a process on another host
watches the file for three heartbeats. The clocks of the hosts are never compared. This module
needs TensorFlow only for remote directories.
"""

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType

from absl import logging

from official_lite.common import errors, files

BEAT_SECS = 10.0

_FILE = ".lock"

_BEATS_TO_MISS = 3

# The states of ended processes in `/proc`: zombie and dead.
_ENDED = ("Z", "X")

# The ids of the locks that this process holds. Comparing the PID is not enough, because a dead
# process may have had the same PID.
_held: set[str] = set()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Holder:
    """The process that holds a lock, and its last heartbeat.

    Attributes:
        id: A unique id of the lock.
        host: The host name of the process.
        namespace: The PID namespace on the host; each container has its own.
        pid: The PID of the process.
        process_start: The start time of the process, as the system reports it.
        start_time: The time when the process acquired the lock, in seconds since 1970.
        beat: The time when the process last wrote the lock, in seconds since 1970.
    """

    id: str
    host: str
    namespace: str
    pid: int
    process_start: str
    start_time: float
    beat: float

    def __post_init__(self) -> None:
        texts = (self.id, self.host, self.namespace, self.process_start)
        times = (self.start_time, self.beat)
        is_valid = all(isinstance(text, str) for text in texts) and all(
            isinstance(seconds, int | float) and 0 <= seconds < 2**33 for seconds in times
        )
        if not is_valid or not isinstance(self.pid, int) or not 0 < self.pid < 2**31:
            raise ValueError("a field of the lock has the wrong type or is out of range")

    def describe(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.start_time))
        return f"process {self.pid} on {self.host}, since {since}"


class ModelDirLock(contextlib.AbstractContextManager["ModelDirLock"]):
    """Lock that a process holds while it trains in a directory, or writes predictions to it.

    ::

        with ModelDirLock(model_dir):
            ...

    Args:
        directory: The directory, which must exist.
        activity: What the process does in the directory, for the error.
        field: The name of the directory in the config or the command, for the error.
        sleep: A function that waits for a number of seconds.
        clock: A function that returns the time in seconds since 1970.
    """

    def __init__(
        self,
        directory: str,
        *,
        activity: str = "training",
        field: str = "model_dir",
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._activity = activity
        self._field = field
        self._path = os.path.join(directory, _FILE)
        self._sleep = sleep
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._me = _Holder(
            id=uuid.uuid4().hex,
            host=socket.gethostname(),
            namespace=_process_namespace(),
            pid=os.getpid(),
            process_start=_process_start(os.getpid()),
            start_time=clock(),
            beat=clock(),
        )

    def __enter__(self) -> "ModelDirLock":
        """Acquire the lock; take it over if the process that holds it is dead.

        Raises:
            errors.ModelDirBusyError: If another process holds the lock.
        """
        # Another thread may read the lock as soon as the file exists.
        _held.add(self._me.id)
        try:
            self._acquire()
        except BaseException:
            _held.discard(self._me.id)
            raise
        self._thread = threading.Thread(target=self._beat_on, name="model_dir_lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        _held.discard(self._me.id)
        # An error while the lock is removed must not hide the error that ended the run.
        with contextlib.suppress(OSError):
            if self._is_mine():
                files.remove(self._path)

    def _acquire(self) -> None:
        while not self._try_to_create():
            holder = self._read()
            if holder is not None and self._is_alive(holder):
                raise errors.ModelDirBusyError(
                    f"Another run is {self._activity} in {self._directory}: {holder.describe()}. "
                    f"Stop it first, or use another `{self._field}`."
                )
            self._take_away(holder)

    def _try_to_create(self) -> bool:
        try:
            files.create_text(self._path, self._text())
        except FileExistsError:
            return False
        return True

    def _text(self) -> str:
        return json.dumps(dataclasses.asdict(dataclasses.replace(self._me, beat=self._clock())))

    def _read(self) -> _Holder | None:
        """Return the holder of the lock; None if there is no lock or the file stays unreadable."""
        for _ in range(3):
            try:
                return _Holder(**files.read_json(self._path))
            except FileNotFoundError:
                return None
            except errors.NotAFileError:
                raise
            except (OSError, TypeError, ValueError):
                # Another process may be writing the file.
                self._sleep(0.2)
        return None

    def _is_alive(self, holder: _Holder) -> bool:
        is_alive = self._is_alive_here(holder)
        if is_alive is not None:
            return is_alive
        logging.info(
            "%s is locked by %s. Waiting to check whether that process is alive.",
            self._directory,
            holder.describe(),
        )
        for _ in range(_BEATS_TO_MISS):
            self._sleep(BEAT_SECS)
            now = self._read()
            if now is None or now.beat != holder.beat:
                return now is not None
        return False

    def _is_alive_here(self, holder: _Holder) -> bool | None:
        """Return whether the holder is alive; None if it runs on another host or container."""
        if (holder.host, holder.namespace) != (self._me.host, self._me.namespace):
            return None
        if holder.pid == os.getpid():
            return holder.id in _held
        start = _process_start(holder.pid)
        return _process_exists(holder.pid) and start == holder.process_start

    def _take_away(self, holder: _Holder | None) -> None:
        """Remove a stale lock, unless another process has since replaced it."""
        aside = f"{self._path}.{uuid.uuid4().hex}"
        try:
            files.rename(self._path, aside)
        except OSError:
            return
        with contextlib.suppress(OSError, TypeError, ValueError):
            taken = _Holder(**files.read_json(aside))
            if holder is None or taken.id != holder.id:
                files.rename(aside, self._path)
                return
        files.remove(aside)
        who = holder.describe() if holder is not None else "an unknown process"
        logging.warning("Took over the lock of %s from %s, which is dead.", self._directory, who)

    def _beat_on(self) -> None:
        while not self._stop.wait(BEAT_SECS):
            try:
                if not self._is_mine():
                    logging.error(
                        "Another run has taken the lock of %s. Stop one of the two runs.",
                        self._directory,
                    )
                    return
                files.write_text(self._path, self._text())
            except OSError as error:  # The disk may be full; the next heartbeat may succeed.
                logging.warning(
                    "The lock file that keeps other runs out of %s can't be written: %s. The run "
                    "continues and tries again in %d seconds.",
                    self._directory,
                    error,
                    BEAT_SECS,
                )

    def _is_mine(self) -> bool:
        try:
            return bool(files.read_json(self._path)["id"] == self._me.id)
        except (OSError, KeyError, ValueError):
            return False


def is_held(directory: str, *, waits: bool = False) -> bool | None:
    """Return whether a live process holds the lock of a directory.

    Args:
        directory: The directory.
        waits: Whether to wait for the heartbeats of a holder on another host, as in acquiring the
            lock. Otherwise, the result for such a holder is None.
    """
    lock = ModelDirLock(directory)
    try:
        holder = lock._read()
    except errors.NotAFileError:
        return False
    if holder is None:
        return False
    return lock._is_alive(holder) if waits else lock._is_alive_here(holder)


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _process_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _process_start(pid: int) -> str:
    """Return the start time of a process, as the system reports it; empty if unknown.

    The system may reuse the PID of a dead process, but not with the same start time. The result is
    also empty for a zombie process, which keeps its PID until its parent waits for it. The first
    process of a container may never wait for its children.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            # The program name, in parentheses, may contain spaces and parentheses itself.
            fields = stat.read().rpartition(")")[2].split()
        return "" if fields[0] in _ENDED else fields[19]
    except (OSError, IndexError):
        return ""
