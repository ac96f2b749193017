"""The commit file of a checkpoint, without which it does not count.

::

    ckpt-1000.index  ckpt-1000.data-00000-of-00001     what TensorFlow writes
    ckpt-1000.commit.json                              written last, when those are on the disk

It holds the sizes of the files, the checksum of the index, and a description of the run. TensorFlow
keeps a checksum of each tensor in the index, so the data need no second one: a flipped bit comes up
when the tensor is read.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from official_lite.common import files

__all__ = [
    "Commit",
    "find_damage",
    "list_committed",
    "list_files",
    "path_of",
    "read",
    "remove_checkpoint",
    "step_of",
    "write",
]

_SUFFIX = ".commit.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Commit:
    """What a commit file says.

    Attributes:
        step: The number of the checkpoint.
        files: The size of each file in bytes, by name.
        index_sha256: The checksum of the index file.
        state: What the run said of itself; empty if it said nothing.
    """

    step: int
    files: Mapping[str, int]
    index_sha256: str
    state: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def total_size(self) -> int:
        """Bytes in all files."""
        return sum(self.files.values())


def path_of(prefix: str) -> str:
    """The commit file of a checkpoint."""
    return prefix + _SUFFIX


def step_of(prefix: str) -> int:
    """The number of a checkpoint, from its name; -1 if it has none."""
    matched = re.search(r"-(\d+)$", prefix)
    return int(matched.group(1)) if matched else -1


def list_committed(directory: str, name: str | None = None) -> list[str]:
    """The checkpoints of a directory that have a commit file, by their numbers.

    Args:
        directory: The directory.
        name: What comes before the number; any if not given.
    """
    wanted = r".+" if name is None else re.escape(name)
    pattern = re.compile(rf"{wanted}-\d+{re.escape(_SUFFIX)}")
    found = filter(pattern.fullmatch, files.list_names(directory))
    prefixes = [os.path.join(directory, each.removesuffix(_SUFFIX)) for each in found]
    return sorted(prefixes, key=step_of)


def list_files(prefix: str) -> list[str]:
    """The paths of the files that TensorFlow has written for a checkpoint: the index first."""
    directory, base = os.path.split(prefix)
    pattern = re.compile(rf"{re.escape(base)}\.(index|data-\d+-of-\d+)")
    names = filter(pattern.fullmatch, files.list_names(directory or "."))
    return sorted((os.path.join(directory, name) for name in names), key=_index_first)


def write(prefix: str, state: Mapping[str, Any] | None = None) -> Commit:
    """Writes the commit file of a checkpoint whose files are complete, and returns what it says.

    Args:
        prefix: The checkpoint.
        state: A description of the run, for JSON.
    """
    paths = list_files(prefix)
    for path in paths:
        files.sync(path)
    commit = Commit(
        step=step_of(prefix),
        files={os.path.basename(path): files.size(path) for path in paths},
        index_sha256=_sha256(f"{prefix}.index"),
        state=dict(state or {}),
    )
    text = json.dumps(dataclasses.asdict(commit), separators=(",", ":"))
    files.write_text(path_of(prefix), text + "\n")
    return commit


def read(prefix: str) -> Commit | None:
    """What the commit file of a checkpoint says; None if it has none.

    Raises:
        ValueError: It is not what was written there.
    """
    path = path_of(prefix)
    if not files.exists(path):
        return None
    try:
        return Commit(**json.loads(files.read_text(path)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{os.path.basename(path)} is not what was written there") from error


def find_damage(prefix: str) -> str | None:
    """What the commit file says that is not so, in a few words; None if all is as it says.

    Reads no tensors. A checkpoint without a commit file says nothing.
    """
    try:
        commit = read(prefix)
    except ValueError as error:
        return str(error)
    if commit is None:
        return None
    for name, size in commit.files.items():
        path = os.path.join(os.path.dirname(prefix), os.path.basename(name))
        if not files.exists(path):
            return f"{name} is missing"
        if files.size(path) != size:
            return f"{name} has {files.size(path)} bytes; {size} were written"
    if commit.index_sha256 != _sha256(f"{prefix}.index"):
        return f"{os.path.basename(prefix)}.index has another checksum than when it was written"
    return None


def remove_checkpoint(prefix: str) -> None:
    """Removes all files of a checkpoint, the commit file first: without it the rest is nothing."""
    for path in [path_of(prefix), *list_files(prefix)]:
        if files.exists(path):
            files.remove(path)


def _index_first(path: str) -> tuple[bool, str]:
    return not path.endswith(".index"), path


def _sha256(path: str) -> str:
    with files.open_file(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
