"""Lookup of the checkpoints that exist in a directory.

TensorFlow's own `checkpoint` file is still written, for other tools. It is used only if no
checkpoint has a commit file, as in directories written by Orbit, the Model Garden and older
versions. Only the base names of its paths are used, so nothing outside the directory is ever
opened.
"""

import os
import re
from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf
from absl import logging

from official_lite.checkpoint import commit
from official_lite.common import files

__all__ = [
    "CheckpointState",
    "find_checkpoints",
    "find_managed",
    "find_unlisted",
    "latest_checkpoint",
    "read_state",
]


def latest_checkpoint(directory: str) -> str | None:
    """Return the latest checkpoint of a directory whose files are complete; None if there is none.

    Use this instead of `tf.train.latest_checkpoint`. The latest checkpoint is the one with the
    highest step, regardless of the time at which it was written.
    """
    for path in reversed(find_checkpoints(directory) or find_unlisted(directory)):
        damage = commit.find_damage(path)
        if damage is None:
            return path
        logging.warning("Skipping %s: %s.", path, damage)
    return None


def find_checkpoints(directory: str, name: str | None = None) -> list[str]:
    """Return the checkpoints of a directory, from the oldest to the latest.

    Args:
        directory: The directory, which need not exist.
        name: The part of the name before the number, such as `ckpt`. None matches any name.
    """
    if commit.list_committed(directory):
        return commit.list_committed(directory, name)
    return [path for path in _listed(directory) if name is None or _has_name(path, name)]


def find_unlisted(directory: str, name: str | None = None) -> list[str]:
    """Return all checkpoints that have an index file.

    Use this if a directory has neither commit files nor a `checkpoint` file. The result may include
    checkpoints from another tool or from an interrupted save.
    """
    names = files.list_names(directory)
    indices = [each.removesuffix(".index") for each in names if each.endswith(".index")]
    paths = [os.path.join(directory, each) for each in indices if commit.step_of(each) >= 0]
    paths = [path for path in paths if name is None or _has_name(path, name)]
    return sorted(paths, key=commit.step_of)


def find_managed(directory: str, name: str) -> list[str]:
    """Return the checkpoints that a manager may remove later.

    These do not include checkpoints kept by `keep_checkpoint_every_n_hours`, which the `checkpoint`
    file no longer lists.
    """
    paths = find_checkpoints(directory, name)
    listed = _listed(directory)
    if not listed:
        return paths
    oldest = min(map(commit.step_of, listed))
    return [path for path in paths if path in listed or commit.step_of(path) > oldest]


class CheckpointState(Protocol):
    """The fields of TensorFlow's `CheckpointState`: the checkpoints of a directory."""

    model_checkpoint_path: str
    all_model_checkpoint_paths: Sequence[str]
    all_model_checkpoint_timestamps: Sequence[float]
    last_preserved_timestamp: float


def read_state(directory: str) -> CheckpointState | None:
    """Return the state in the file `checkpoint`; None if it is not readable."""
    path = os.path.join(directory, "checkpoint")
    if not files.exists(path):
        return None
    try:
        # `open_file` rejects a pipe, from which TensorFlow would wait forever for input.
        with files.open_file(path, "rb"):
            return tf.train.get_checkpoint_state(directory)
    except (OSError, ValueError, tf.errors.OpError):
        # The `checkpoint` file is missing, empty, unreadable, or not UTF-8.
        logging.warning("Ignoring %s, which can't be read.", path)
        return None


def _listed(directory: str) -> list[str]:
    """Return the checkpoints that the file `checkpoint` lists and that exist in the directory."""
    state = read_state(directory)
    if state is None:
        return []
    latest = state.model_checkpoint_path
    others = [path for path in state.all_model_checkpoint_paths if path != latest]
    paths = [os.path.join(directory, os.path.basename(path)) for path in [*others, latest]]
    return [path for path in paths if files.exists(f"{path}.index")]


def _has_name(path: str, name: str) -> bool:
    return re.fullmatch(rf"{re.escape(name)}-\d+", os.path.basename(path)) is not None
