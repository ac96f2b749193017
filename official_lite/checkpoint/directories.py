"""The directories to which this process may write checkpoints."""

import atexit
import shutil
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
    """
    if is_chief(strategy):
        return directory
    temporary = tempfile.mkdtemp(prefix="official_lite_worker_")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary
