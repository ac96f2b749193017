"""Restoring of the latest checkpoint that can be restored."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.checkpoint import commit, completeness, inspection, keras2_converter
from official_lite.common import errors, files, suggestions

__all__ = ["DAMAGED_DIR", "find_unreadable", "restore", "restore_newest", "set_aside"]

DAMAGED_DIR = "damaged"

# Errors of a restore from files that are damaged or belong to another model.
_UNUSABLE = (ValueError, IndexError, tf.errors.OpError)
# Errors that say nothing about the files, although they are `OpError`s.
_PASSING = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnauthenticatedError,
    tf.errors.UnavailableError,
)


def restore_newest(
    checkpoint: tf.train.Checkpoint,
    paths: Sequence[str],
    *,
    check: Callable[[str, Mapping[str, Any]], None] = lambda path, state: None,
    optional: Callable[[], Iterable[Any]] = tuple,
) -> tuple[str | None, list[str]]:
    """Restore the last of `paths` that is intact, and report the damaged ones.

    An intact checkpoint of another model is an error: an older checkpoint would not fit either, and
    silently restoring an older state was not requested. Values from a damaged checkpoint that have
    reached variables are overwritten by the next restore.

    Args:
        checkpoint: The checkpoint object to restore into.
        paths: The checkpoints, from the oldest to the latest.
        check: Called before a restore with the path and the description of the run in the commit
            file.
        optional: Returns the variables that a checkpoint may lack; see `completeness`.

    Returns:
        The restored path, or None if no checkpoint is intact, and the damaged checkpoints, latest
        first.

    Raises:
        errors.CheckpointError: An intact checkpoint does not fit.
    """
    damaged: list[str] = []
    for path in reversed(paths):
        damage = _try(checkpoint, path, check, optional)
        if damage is None:
            for other in damaged:
                logging.error("%s is damaged. Restoring %s instead.", other, path)
            return path, damaged
        logging.error("%s is damaged: %s.", path, damage)
        damaged.append(path)
    return None, damaged


def restore(
    checkpoint: tf.train.Checkpoint,
    path: str,
    *,
    optional: Iterable[Any] = (),
    is_partial: bool = False,
) -> None:
    """Restore a checkpoint that has a value for every variable; convert it if Keras 2 wrote it.

    Args:
        checkpoint: The checkpoint object to restore into.
        path: The prefix of the checkpoint files.
        optional: Variables that may be missing in the files.
        is_partial: Whether the files are expected to hold more, such as an optimizer.

    Raises:
        errors.CheckpointError: The checkpoint does not fit. Nothing has been changed.
    """
    if keras2_converter.is_keras2(path):
        keras2_converter.restore_run(checkpoint, path, optional=optional)
        return
    completeness.require_complete(checkpoint, path, optional=optional)
    status = checkpoint.restore(path)
    if is_partial:
        status.expect_partial()


def find_unreadable(path: str) -> str | None:
    """Read all tensors of a checkpoint and return the first error, or None if there is none."""
    try:
        reader = tf.train.load_checkpoint(path)
        for key in reader.get_variable_to_shape_map():
            reader.get_tensor(key)
    except _PASSING:
        raise
    except _UNUSABLE as error:
        return inspection.in_short(error)
    return None


def set_aside(prefix: str) -> str:
    """Move the files of a damaged checkpoint to a new directory in `damaged/` and return it."""
    directory, base = os.path.split(prefix)
    folder = _free(os.path.join(directory, DAMAGED_DIR, base))
    files.makedirs(folder)
    for path in [commit.path_of(prefix), *commit.list_files(prefix)]:
        if files.exists(path):
            files.rename(path, os.path.join(folder, os.path.basename(path)))
    logging.warning("The files of %s are now in %s.", prefix, folder)
    return folder


def _try(
    checkpoint: tf.train.Checkpoint,
    path: str,
    check: Callable[[str, Mapping[str, Any]], None],
    optional: Callable[[], Iterable[Any]],
) -> str | None:
    """Restore a checkpoint; if it is damaged, return a description of the damage."""
    damage = commit.find_damage(path)
    if damage is not None:
        return damage
    found = commit.read(path)
    if found is not None:
        check(path, found.state)
    try:
        restore(checkpoint, path, optional=optional())
    except (errors.OfficialLiteError, *_PASSING):
        raise
    except _UNUSABLE as error:
        _forget_deferred(checkpoint)
        damage = find_unreadable(path)
        if damage is None:
            raise errors.CheckpointError(
                f"{path} can't be restored: {inspection.in_short(error)}. The checkpoint is "
                "intact, but it was saved by a different model or optimizer. To use the original "
                f"ones, apply the config of the run: {suggestions.config_file('params.yaml')}."
            ) from error
    return damage


def _forget_deferred(checkpoint: tf.train.Checkpoint) -> None:
    """Discard deferred restorations left behind by a failed restore.

    Otherwise, objects that are created later, such as the save counter, would first receive values
    from the failed checkpoint, whose files may no longer exist.
    """
    for trackable in tf.train.TrackableView(checkpoint).descendants():
        getattr(trackable, "_deferred_dependencies", {}).clear()


def _free(path: str) -> str:
    candidate, number = path, 1
    while files.exists(candidate):
        number += 1
        candidate = f"{path}.{number}"
    return candidate
