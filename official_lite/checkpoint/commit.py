"""Commit files, which mark checkpoints as complete, and the removal of incomplete ones."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from absl import logging

from official_lite.common import errors, files

__all__ = [
    "Commit",
    "checksum",
    "find_damage",
    "find_tampering",
    "list_committed",
    "list_files",
    "path_of",
    "read",
    "remove_checkpoint",
    "sha256",
    "step_of",
    "write",
    "remove",
]


_SUFFIX = ".commit.json"

_BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Commit:
    """The contents of a commit file.

    Attributes:
        step: The number of the checkpoint.
        files: The size of each file in bytes, by file name.
        index_sha256: The checksum of the index file.
        state: The description of the run; empty if none was given.
        sha256: The checksum of each file, by file name; empty for a checkpoint without a chain, and
            on a remote file system, from which the files would have to be read back.
        chain: The links to the previous commit file and to the record of the run; see `chain`.
            Empty without a chain.
    """

    step: int
    files: Mapping[str, int]
    index_sha256: str
    state: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sha256: Mapping[str, str] = dataclasses.field(default_factory=dict)
    chain: Mapping[str, str | None] = dataclasses.field(default_factory=dict)

    @property
    def total_size(self) -> int:
        """The total size of all files in bytes."""
        return sum(self.files.values())


def path_of(prefix: str) -> str:
    """Return the path of the commit file of a checkpoint."""
    return prefix + _SUFFIX


def step_of(prefix: str) -> int:
    """Return the number in the name of a checkpoint; -1 if it has none."""
    matched = re.search(r"-(\d+)$", prefix)
    return int(matched.group(1)) if matched else -1


def list_committed(directory: str, name: str | None = None) -> list[str]:
    """Return the checkpoints of a directory that have a commit file, sorted by number.

    Args:
        directory: The directory.
        name: The part of the name before the number; None matches any name.
    """
    wanted = r".+" if name is None else re.escape(name)
    pattern = re.compile(rf"{wanted}-\d+{re.escape(_SUFFIX)}")
    found = filter(pattern.fullmatch, files.list_names(directory))
    prefixes = [os.path.join(directory, each.removesuffix(_SUFFIX)) for each in found]
    return sorted(prefixes, key=step_of)


def list_files(prefix: str) -> list[str]:
    """Return the paths of the files that TensorFlow wrote for a checkpoint, the index first."""
    directory, base = os.path.split(prefix)
    pattern = re.compile(rf"{re.escape(base)}\.(index|data-\d+-of-\d+)")
    names = filter(pattern.fullmatch, files.list_names(directory or "."))
    paths = [os.path.join(directory, name) for name in names]
    return sorted(paths, key=lambda path: (not path.endswith(".index"), path))


def write(
    prefix: str,
    state: Mapping[str, Any] | None = None,
    chain: Mapping[str, str | None] | None = None,
) -> Commit:
    """Write the commit file of a checkpoint whose files are complete, and return its contents.

    Args:
        prefix: The checkpoint.
        state: A JSON-serializable description of the run.
        chain: The links of the checkpoint, if the run keeps a chain.
    """
    paths = list_files(prefix)
    for path in paths:
        files.sync(path)
    local = [path for path in paths if not files.is_remote(path)] if chain else []
    commit = Commit(
        step=step_of(prefix),
        files={os.path.basename(path): files.size(path) for path in paths},
        index_sha256=sha256(f"{prefix}.index"),
        state=dict(state or {}),
        sha256={os.path.basename(path): sha256(path) for path in local},
        chain=dict(chain or {}),
    )
    entries = dataclasses.asdict(commit)
    if not chain:
        del entries["sha256"], entries["chain"]
    text = json.dumps(entries, separators=(",", ":"))
    files.write_text(path_of(prefix), text + "\n")
    return commit


def read(prefix: str) -> Commit | None:
    """Return the contents of the commit file of a checkpoint; None if there is none.

    Raises:
        ValueError: The commit file is damaged.
        OSError: The commit file cannot be read.
    """
    path = path_of(prefix)
    if not files.exists(path):
        return None
    try:
        commit = Commit(**files.read_json(path))
        numbers = (commit.step, *commit.files.values())
        mappings = (commit.state, commit.sha256, commit.chain)
        is_valid = all(isinstance(number, int) for number in numbers)
        if not (is_valid and all(isinstance(mapping, dict) for mapping in mappings)):
            raise ValueError("a field has the wrong type")
        return commit
    except (errors.NotAFileError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{os.path.basename(path)} is damaged") from error


def find_damage(prefix: str) -> str | None:
    """Return a short description of how the files differ from the commit file; None if they match.

    This reads no tensors. A checkpoint without a commit file has no known damage.
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
            return f"{name} has {files.size(path)} bytes instead of {size}"
    if not files.exists(f"{prefix}.index"):
        return f"{os.path.basename(prefix)}.index is missing"
    if commit.index_sha256 != sha256(f"{prefix}.index"):
        return f"{os.path.basename(prefix)}.index has a wrong checksum"
    return None


def find_tampering(prefix: str) -> tuple[str, str, str] | None:
    """Return the first file that differs from the committed file; None if no file does.

    Unlike `find_damage`, this reads all files completely.

    Returns:
        The name of the file, what the commit file says about it, and what was found.

    Raises:
        ValueError: The commit file is damaged.
    """
    commit = read(prefix)
    for name, size in commit.files.items() if commit else ():
        path = os.path.join(os.path.dirname(prefix), os.path.basename(name))
        if not files.exists(path):
            return name, f"{size} bytes", "no such file"
        if files.size(path) != size:
            return name, f"{size} bytes", f"{files.size(path)} bytes"
        wanted = commit.sha256.get(name) if commit else None
        if wanted and (found := sha256(path)) != wanted:
            return name, f"sha256 {wanted}", f"sha256 {found}"
    return None


def checksum(prefix: str) -> str:
    """Return the SHA-256 of the commit file of a checkpoint."""
    return sha256(path_of(prefix))


def remove_checkpoint(prefix: str) -> None:
    """Remove all files of a checkpoint.

    The commit file is removed first, because files without a commit file are not a checkpoint.
    """
    for path in [path_of(prefix), *list_files(prefix)]:
        if files.exists(path):
            files.remove(path)


def sha256(path: str) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with files.open_file(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def remove(directory: str, name: str) -> None:
    """Remove unfinished checkpoints; call this only if no other process saves to the directory.

    If no checkpoint in the directory has a commit file, checkpoints are kept because they may be
    complete and come from another tool. Files with other names are ignored.

    Args:
        directory: The directory, which need not exist.
        name: The part of the name before the number, such as `ckpt`.
    """
    names = files.list_names(directory)
    for each in _unfinished(names, re.escape(name), bool(list_committed(directory))):
        path = os.path.join(directory, each)
        logging.info("Removing %s, which an interrupted save left behind.", path)
        files.remove_all(path)


def _unfinished(names: list[str], name: str, has_commits: bool) -> list[str]:
    # TensorFlow and `files.write_text` write files under these names before renaming them.
    temporary = re.compile(
        rf"{name}-\d+_temp|{name}-\d+\.commit\.json\.\w+\.tmp|checkpoint\.tmp[0-9a-f]{{32}}"
    )
    parts = re.compile(rf"({name}-\d+)\.(index|data-\d+-of-\d+)(\.tempstate\d+)?")
    found = [each for each in names if temporary.fullmatch(each)]
    for each in names:
        matched = parts.fullmatch(each)
        if has_commits and matched and path_of(matched.group(1)) not in names:
            found.append(each)
    return found
