"""Checks for free disk space before a checkpoint is saved."""

import errno
import shutil

import tensorflow as tf

from official_lite.common import errors, files

__all__ = ["is_disk_full", "require_space"]

# The checkpoint may grow a little, and other processes write to the disk, too.
_RESERVE = 1.2


def require_space(directory: str, size: int) -> None:
    """Check that there is room for another checkpoint as large as the last one.

    Args:
        directory: The directory of the checkpoints. Remote file systems are not checked because
            their free space is unknown.
        size: The size of the last checkpoint in bytes.

    Raises:
        errors.CheckpointError: There is too little space.
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
    """Return whether a save failed with this error because the disk is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    is_exhausted = isinstance(error, tf.errors.ResourceExhaustedError)
    # The same error class reports that the memory of a device is exhausted.
    return is_exhausted and "space" in str(error).lower()
