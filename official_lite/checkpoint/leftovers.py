"""Removal of incomplete checkpoint files left behind by a killed process."""

import os
import re

from absl import logging

from official_lite.checkpoint import commit
from official_lite.common import files

__all__ = ["remove"]


def remove(directory: str, name: str) -> None:
    """Remove unfinished checkpoints; call this only if no other process saves to the directory.

    If no checkpoint in the directory has a commit file, checkpoints are kept because they may be
    complete and come from another tool. Files with other names are ignored.

    Args:
        directory: The directory, which need not exist.
        name: The part of the name before the number, such as `ckpt`.
    """
    names = files.list_names(directory)
    for each in _unfinished(names, re.escape(name), bool(commit.list_committed(directory))):
        path = os.path.join(directory, each)
        logging.info("%s is left of a save that was cut short; it is removed.", path)
        files.remove_all(path)


def _unfinished(names: list[str], name: str, has_commits: bool) -> list[str]:
    # Names that TensorFlow and `files.write_text` give to files before they rename them.
    temporary = re.compile(
        rf"{name}-\d+_temp|{name}-\d+\.commit\.json\.\w+\.tmp|checkpoint\.tmp[0-9a-f]{{32}}"
    )
    parts = re.compile(rf"({name}-\d+)\.(index|data-\d+-of-\d+)(\.tempstate\d+)?")
    found = [each for each in names if temporary.fullmatch(each)]
    for each in names:
        matched = parts.fullmatch(each)
        if has_commits and matched and commit.path_of(matched.group(1)) not in names:
            found.append(each)
    return found
