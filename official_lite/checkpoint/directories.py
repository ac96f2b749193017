"""Where this process may write checkpoints."""

import atexit
import shutil
import tempfile

import tensorflow as tf

__all__ = ["is_chief", "writable_directory"]


def is_chief(strategy: tf.distribute.Strategy | None = None) -> bool:
    """Whether this process writes what all workers share.

    Args:
        strategy: The strategy of the run; the current one if not given.
    """
    return bool((strategy or tf.distribute.get_strategy()).extended.should_checkpoint)


def writable_directory(directory: str, strategy: tf.distribute.Strategy | None = None) -> str:
    """The directory itself on the chief, a temporary one on every other worker.

    All workers have to take part in saving, since reading a variable may be collective; only the
    chief's files are kept. The temporary folder goes when the process ends.
    """
    if is_chief(strategy):
        return directory
    temporary = tempfile.mkdtemp(prefix="official_lite_worker_")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary
