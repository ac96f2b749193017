"""The directories to which this process may write checkpoints."""

import atexit
import contextlib
import fcntl
import glob
import os
import shutil
import socket
import tempfile

import tensorflow as tf

__all__ = ["is_chief", "writable_directory"]


def is_chief(strategy: tf.distribute.Strategy | None = None) -> bool:
    """Return whether this process writes the files that all workers share.

    Args:
        strategy: The strategy of the run. Defaults to the current strategy.
    """
    return bool((strategy or tf.distribute.get_strategy()).extended.should_checkpoint)


def writable_directory(directory: str, strategy: tf.distribute.Strategy | None = None) -> str:
    """Return the directory itself on the chief and a temporary directory on every other worker.

    All workers must participate in saving because reading a variable may be a collective operation,
    but only the chief's files are kept. The temporary directory is deleted when the process exits.
    If the process is killed, the next process of this user that calls this function deletes it.
    """
    if is_chief(strategy):
        return directory
    # Include the host name, because the locks of some file systems do not work across hosts.
    prefix = f"official_lite_unread_{socket.gethostname()}_"
    _remove_abandoned(prefix)
    # Lock the directory before giving it its final name. Otherwise, another process could mistake
    # it for an abandoned one. It stays locked until this process ends.
    created = tempfile.mkdtemp()
    temporary = os.path.join(os.path.dirname(created), prefix + os.path.basename(created))
    _lock(created)
    os.rename(created, temporary)
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def _remove_abandoned(prefix: str) -> None:
    """Remove the temporary directories of processes that were killed."""
    pattern = os.path.join(glob.escape(tempfile.gettempdir()), glob.escape(prefix) + "*")
    for path in glob.glob(pattern):
        if (descriptor := _lock(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)


def _lock(directory: str) -> int | None:
    """Lock a directory of this user until the descriptor is closed or the process ends.

    Returns:
        The descriptor of the directory. None if another process holds the lock, or if the directory
        can't be locked.
    """
    with contextlib.suppress(OSError), contextlib.ExitStack() as on_failure:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        on_failure.callback(os.close, descriptor)
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            on_failure.pop_all()
            return descriptor
    return None
