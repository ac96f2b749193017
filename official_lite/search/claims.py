"""Which worker runs which trial, also where workers are killed."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator

from official_lite.common import errors, files
from official_lite.core import model_dir_lock

__all__ = ["Claims", "host_name", "is_trained_in"]

_SECONDS = 0.05


class Claims:
    """One lock a trial, held by its worker, and one for choosing the next trial.

    The locks are those of training directories, so that one whose process is dead is known to be
    free: at once on the same host, after some seconds from another one.

    Args:
        study_dir: The directory of the study.
    """

    def __init__(self, study_dir: str) -> None:
        self._directory = os.path.join(study_dir, "claims")

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Inside, no other worker chooses a trial: none is begun twice, and none too many."""
        while (lock := self._lock("turn")) is None:
            time.sleep(_SECONDS)
        with lock:
            yield

    def claim(self, number: int) -> contextlib.AbstractContextManager[object] | None:
        """Takes a trial.

        Args:
            number: Of the trial.

        Returns:
            What holds it until it is closed; None if another worker runs it.
        """
        return self._lock(f"{number:04d}")

    def _lock(self, name: str) -> contextlib.AbstractContextManager[object] | None:
        directory = os.path.join(self._directory, name)
        files.makedirs(directory)
        with contextlib.ExitStack() as stack, contextlib.suppress(errors.ModelDirBusyError):
            stack.enter_context(model_dir_lock.ModelDirLock(directory))
            return stack.pop_all()
        return None


def is_trained_in(model_dir: str) -> bool:
    """Whether a process trains in a directory, such as one that its worker has left behind."""
    files.makedirs(model_dir)
    try:
        with model_dir_lock.ModelDirLock(model_dir):
            return False
    except errors.ModelDirBusyError:
        return True


def host_name() -> str:
    """What a trial remembers of where it runs."""
    return socket.gethostname()
