"""The checkpoints of a directory, by what is really there.

TensorFlow's own file `checkpoint` goes on being written, for other tools. It is believed only where
no checkpoint has a commit file, as Orbit, the Model Garden and older versions leave a directory;
and of its paths only the names: nothing outside of the directory is ever opened.
"""

import os
import re
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.checkpoint import commit
from official_lite.common import files

__all__ = [
    "find_checkpoints",
    "find_managed",
    "find_unlisted",
    "latest_checkpoint",
    "read_state",
]


def latest_checkpoint(directory: str) -> str | None:
    """The newest checkpoint of a directory whose files are all there; None if there is none.

    It takes the place of `tf.train.latest_checkpoint`. The newest is the one with the highest step,
    whatever the clock said when it was written.
    """
    for path in reversed(find_checkpoints(directory) or find_unlisted(directory)):
        damage = commit.find_damage(path)
        if damage is None:
            return path
        logging.warning("%s is passed over: %s.", path, damage)
    return None


def find_checkpoints(directory: str, name: str | None = None) -> list[str]:
    """The checkpoints of a directory, from the oldest to the newest.

    Args:
        directory: The directory; it need not exist.
        name: What comes before the number, such as `ckpt`; any if not given.
    """
    if commit.list_committed(directory):
        return commit.list_committed(directory, name)
    return [path for path in _listed(directory) if name is None or _has_name(path, name)]


def find_unlisted(directory: str, name: str | None = None) -> list[str]:
    """What lies in a directory without a commit file and without a list that can be read.

    It may come from elsewhere, or from a save that was cut short.
    """
    names = files.list_names(directory)
    indices = [each.removesuffix(".index") for each in names if each.endswith(".index")]
    paths = [os.path.join(directory, each) for each in indices if commit.step_of(each) >= 0]
    paths = [path for path in paths if name is None or _has_name(path, name)]
    return sorted(paths, key=commit.step_of)


def find_managed(directory: str, name: str) -> list[str]:
    """Those that a manager may remove one day: not what `keep_checkpoint_every_n_hours` has kept.

    The file `checkpoint` no longer lists those.
    """
    paths = find_checkpoints(directory, name)
    listed = _listed(directory)
    if not listed:
        return paths
    oldest = min(map(commit.step_of, listed))
    return [path for path in paths if path in listed or commit.step_of(path) > oldest]


def read_state(directory: str) -> Any:
    """What the file `checkpoint` says, a `CheckpointState`; None if there is none to be read."""
    try:
        return tf.train.get_checkpoint_state(directory)
    except (ValueError, tf.errors.OpError):  # Empty, not UTF-8, not to be read.
        logging.warning("%s can't be read.", os.path.join(directory, "checkpoint"))
        return None


def _listed(directory: str) -> list[str]:
    """What the file `checkpoint` lists, as far as it lies in the directory."""
    state = read_state(directory)
    if state is None:
        return []
    latest = state.model_checkpoint_path
    others = [path for path in state.all_model_checkpoint_paths if path != latest]
    paths = [os.path.join(directory, os.path.basename(path)) for path in [*others, latest]]
    return [path for path in paths if files.exists(f"{path}.index")]


def _has_name(path: str, name: str) -> bool:
    return re.fullmatch(rf"{re.escape(name)}-\d+", os.path.basename(path)) is not None
