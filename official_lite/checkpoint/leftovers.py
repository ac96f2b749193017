"""Removes what a killed process has left of a checkpoint."""

import os
import re

from absl import logging

from official_lite.checkpoint import commit
from official_lite.common import files

__all__ = ["remove"]


def remove(directory: str, name: str) -> None:
    """Removes unfinished checkpoints; for one who is alone in saving there.

    A checkpoint without a commit file stays if none in the directory has one: then it may be whole,
    and come from elsewhere. Files of other names are not looked at.

    Args:
        directory: The directory; it need not exist.
        name: What comes before the number, such as `ckpt`.
    """
    names = files.list_names(directory)
    for each in _unfinished(names, re.escape(name), bool(commit.list_committed(directory))):
        path = os.path.join(directory, each)
        logging.info("%s is left of a save that was cut short; it is removed.", path)
        files.remove_all(path)


def _unfinished(names: list[str], name: str, has_commits: bool) -> list[str]:
    # As TensorFlow and `files.write_text` call what they are about to rename.
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
