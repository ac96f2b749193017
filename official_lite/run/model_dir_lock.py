"""One training at a time in a directory.

The file `.lock` names the process that trains there, which writes it anew every few seconds. It is
stale if its process is dead. On the same host that is seen at once; from another one, by watching
for three beats. No clock is trusted. Needs no TensorFlow, but for a remote directory.
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

__all__ = ["BEAT_SECS", "ModelDirLock", "is_held"]


BEAT_SECS = 10.0

_FILE = ".lock"

_BEATS_TO_MISS = 3

# States of a process in `/proc`: zombie, dead.
_ENDED = ("Z", "X")

# The locks that this process holds, by their ids: its number alone may be that of a dead one.
_held: set[str] = set()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Holder:
    """Who holds a lock, and when it was last seen.

    Attributes:
        id: A name of the lock's own.
        host: The host.
        namespace: Where on the host process numbers mean the same, such as a container.
        pid: The number of the process.
        process_start: When it began, in a text of the system's.
        start_time: When it took the lock, in seconds since 1970.
        beat: When it wrote the lock last.
    """

    id: str
    host: str
    namespace: str
    pid: int
    process_start: str
    start_time: float
    beat: float

    def describe(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.start_time))
        return f"process {self.pid} on {self.host}, since {since}"


class ModelDirLock(contextlib.AbstractContextManager["ModelDirLock"]):
    """Held while a process trains in a directory.

    ::

        with ModelDirLock(model_dir):
            ...

    Args:
        directory: The directory; it has to exist.
        sleep: Waits for a number of seconds.
        clock: Returns the time in seconds since 1970.
    """

    def __init__(
        self,
        directory: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
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
        """Takes the lock, also from a process that is dead.

        Raises:
            errors.ModelDirBusyError: Another process trains there.
        """
        while not self._try_to_create():
            holder = self._read()
            if holder is not None and self._is_alive(holder):
                raise errors.ModelDirBusyError(
                    f"Another run is training in {self._directory}: {holder.describe()}. End it "
                    "first, or give this one another --model_dir."
                )
            self._take_away(holder)
        _held.add(self._me.id)
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
        # Nothing that goes wrong here may hide how the run ended.
        with contextlib.suppress(OSError):
            if self._is_mine():
                files.remove(self._path)

    def _try_to_create(self) -> bool:
        try:
            files.create_text(self._path, self._text())
        except FileExistsError:
            return False
        return True

    def _text(self) -> str:
        return json.dumps(dataclasses.asdict(dataclasses.replace(self._me, beat=self._clock())))

    def _read(self) -> _Holder | None:
        """Who holds the lock; None if nobody does, or the file stays unreadable."""
        for _ in range(3):
            try:
                return _Holder(**json.loads(files.read_text(self._path)))
            except FileNotFoundError:
                return None
            except (OSError, TypeError, ValueError):
                # It may be about to be written.
                self._sleep(0.2)
        return None

    def _is_alive(self, holder: _Holder) -> bool:
        is_alive = self._is_alive_here(holder)
        if is_alive is not None:
            return is_alive
        logging.info("%s is locked by %s; is it alive?", self._directory, holder.describe())
        for _ in range(_BEATS_TO_MISS):
            self._sleep(BEAT_SECS)
            now = self._read()
            if now is None or now.beat != holder.beat:
                return now is not None
        return False

    def _is_alive_here(self, holder: _Holder) -> bool | None:
        """None for a process of another host, or of another container."""
        if (holder.host, holder.namespace) != (self._me.host, self._me.namespace):
            return None
        if holder.pid == os.getpid():
            return holder.id in _held
        start = _process_start(holder.pid)
        return _process_exists(holder.pid) and start == holder.process_start

    def _take_away(self, holder: _Holder | None) -> None:
        """Removes a stale lock; not one that another process has put in its place meanwhile."""
        aside = f"{self._path}.{uuid.uuid4().hex}"
        try:
            files.rename(self._path, aside)
        except OSError:
            return
        with contextlib.suppress(OSError, TypeError, ValueError):
            taken = _Holder(**json.loads(files.read_text(aside)))
            if holder is None or taken.id != holder.id:
                files.rename(aside, self._path)
                return
        files.remove(aside)
        who = holder.describe() if holder is not None else "a process that left no name"
        logging.warning("%s was locked by %s, which is dead: taken over.", self._directory, who)

    def _beat_on(self) -> None:
        while not self._stop.wait(BEAT_SECS):
            try:
                if not self._is_mine():
                    logging.error("The lock of %s was taken by another run.", self._directory)
                    return
                files.write_text(self._path, self._text())
            except OSError as error:  # The disk may be full; the next beat may succeed.
                logging.warning("The lock of %s can't be written: %s", self._directory, error)

    def _is_mine(self) -> bool:
        try:
            return bool(json.loads(files.read_text(self._path))["id"] == self._me.id)
        except (OSError, TypeError, KeyError, ValueError):
            return False


def is_held(directory: str) -> bool | None:
    """Whether a living process trains in a directory; None if it is one of another host.

    Waits for nobody, unlike a lock that is to be taken.
    """
    lock = ModelDirLock(directory)
    holder = lock._read()
    return False if holder is None else lock._is_alive_here(holder)


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
    """When a process began, in a text of the system's own; empty where that is not known.

    The number of a dead process is given to another one some day, this not. One that has ended is
    empty, too, though it keeps its number until its parent asks how it ended, which the first
    process of a container may never do.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            # The name of the program, in brackets, may hold anything.
            fields = stat.read().rpartition(")")[2].split()
        return "" if fields[0] in _ENDED else fields[19]
    except (OSError, IndexError):
        return ""
