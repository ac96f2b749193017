"""Whether there is room for a checkpoint."""

import errno
import shutil

import tensorflow as tf

from official_lite.common import errors, files

__all__ = ["is_disk_full", "require_space"]

# A checkpoint may grow a little, and others write, too.
_RESERVE = 1.2


def require_space(directory: str, size: int) -> None:
    """Makes sure that there is room for another checkpoint as large as the last one.

    Args:
        directory: Where it goes. Of a remote file system nobody knows how much room it has.
        size: Bytes of the last one.

    Raises:
        errors.CheckpointError: There is not.
    """
    if files.is_remote(directory) or not files.exists(directory):
        return
    free = shutil.disk_usage(directory).free
    if free < _RESERVE * size:
        raise errors.CheckpointError(
            f"No checkpoint is saved in {directory}: the last one has {size:,} bytes, and there "
            f"are {free:,} left. Make room, or lower `trainer.max_to_keep`; then the same command "
            "goes on."
        )


def is_disk_full(error: BaseException) -> bool:
    """Whether that is what a save failed with."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    is_exhausted = isinstance(error, tf.errors.ResourceExhaustedError)
    # The memory of a device can be exhausted, too.
    return is_exhausted and "space" in str(error).lower()
