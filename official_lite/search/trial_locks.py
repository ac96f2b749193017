"""Locks that assign each trial to one worker and survive killed workers."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator

from official_lite.common import errors, files
from official_lite.run import model_dir_lock

__all__ = ["TrialLocks", "host_name", "is_trained_in"]

_SECONDS = 0.05


class TrialLocks:
    """The locks of a study: one per trial, held by its worker, and one for choosing trials.

    The locks are model directory locks, which detect that their process has died: immediately on
    the same host, after a few seconds from another host.

    Args:
        study_dir: The directory of the study.
    """

    def __init__(self, study_dir: str) -> None:
        self._directory = os.path.join(study_dir, "claims")

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock for choosing trials.

        While the context is active, no other worker chooses a trial. Therefore no trial starts
        twice, and the study never starts more trials than it should.
        """
        while (lock := self._lock("turn")) is None:
            time.sleep(_SECONDS)
        with lock:
            yield

    def claim(self, number: int) -> contextlib.AbstractContextManager[object] | None:
        """Claim a trial for this worker.

        Args:
            number: The number of the trial.

        Returns:
            A context manager that holds the claim until it exits, or None if another worker runs
            the trial.
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
    """Return whether a process trains in `model_dir`, such as one that outlived its worker."""
    files.makedirs(model_dir)
    try:
        with model_dir_lock.ModelDirLock(model_dir):
            return False
    except errors.ModelDirBusyError:
        return True


def host_name() -> str:
    """Return the host name that a trial records to say where it runs."""
    return socket.gethostname()
