"""The paths and patterns from which a process reads its input, and checksums of the files there.

Files on remote file systems are named but not described. This module does not need TensorFlow.
"""

import glob
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from official_lite.common import files

__all__ = ["describe", "find_differences", "forget", "remember", "remembered"]

# A larger file is sampled: this many blocks, from its first bytes to its last ones.
_MOST_BYTES_OF_A_FILE = 1 << 20
_BLOCKS = 16
_BLOCK_BYTES = 1 << 14

# Limits for all files of a run. They bound the time to about a second.
_MOST_BYTES = 1 << 28
_MOST_LISTED = 1000
_MOST_FILES = 100_000

# The patterns, in the order in which they were first read.
_PATTERNS: dict[str, None] = {}


def remember(patterns: Iterable[str]) -> None:
    """Remember paths and patterns from which this process reads."""
    _PATTERNS.update(dict.fromkeys(patterns))


def remembered() -> list[str]:
    """Return the paths and patterns that this process has remembered since the last `forget`."""
    return list(_PATTERNS)


def forget() -> None:
    """Forget all paths and patterns, at the end of a run."""
    _PATTERNS.clear()


def describe(patterns: Iterable[str]) -> list[dict[str, Any]]:
    """Describe the files that match each pattern, so that `find_differences` can compare them.

    The contents of small files are hashed completely, those of larger files at fixed offsets. Only
    the first 1000 files are listed; names and sizes of the others are hashed. If the bytes to hash
    exceed 256 MiB, the rest is compared by size only.

    Args:
        patterns: Paths of files and directories, and patterns. A directory stands for all files in
            it and below.

    Returns:
        A JSON-serializable mapping for each pattern.
    """
    described = []
    num_listed = num_bytes = 0
    for pattern in patterns:
        pattern = pattern if files.is_remote(pattern) else os.path.abspath(pattern)
        paths = _find_files(pattern)
        sizes = {path: files.size(path) for path in paths}
        listed = []
        for path in itertools.islice(sizes, max(0, _MOST_LISTED - num_listed)):
            is_small = sizes[path] <= _MOST_BYTES_OF_A_FILE
            cost = sizes[path] if is_small else _BLOCKS * _BLOCK_BYTES
            is_hashed = num_bytes + cost <= _MOST_BYTES
            num_bytes += cost if is_hashed else 0
            listed.append(_describe_file(path, sizes[path], is_hashed))
        num_listed += len(listed)
        described.append(
            {
                "pattern": pattern,
                "num_files": len(paths),
                "bytes": sum(sizes.values()),
                "sizes_sha256": _hash_sizes(sizes),
                "files": listed,
            }
        )
    return described


def find_differences(described: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Compare the files that match a pattern with an earlier description of them.

    Args:
        described: An element of the result of `describe`.

    Yields:
        For each difference, the file or pattern, what was recorded, and what was found.
    """
    pattern = str(described["pattern"])
    sizes = {path: files.size(path) for path in _find_files(pattern)}
    recorded = {str(each["path"]): each for each in described["files"]}
    for path, each in recorded.items():
        if path not in sizes:
            yield path, f"{each['bytes']} bytes", "no such file"
        elif sizes[path] != each["bytes"]:
            yield path, f"{each['bytes']} bytes", f"{sizes[path]} bytes"
        elif each["sha256"] is not None and (found := _sha256(path, sizes[path])) != each["sha256"]:
            how = "" if each["hashed"] == "whole" else " of samples"
            yield path, f"sha256{how} {each['sha256']}", f"sha256{how} {found}"
    is_listed = len(recorded) == described["num_files"]
    for path in sizes if is_listed else ():
        if path not in recorded:
            yield path, "no such file", f"{sizes[path]} bytes"
    if not is_listed and _hash_sizes(sizes) != described["sizes_sha256"]:
        yield (
            pattern,
            f"{described['num_files']} files with {described['bytes']} bytes",
            f"{len(sizes)} files with {sum(sizes.values())} bytes, or other names or sizes",
        )


def _describe_file(path: str, size: int, is_hashed: bool) -> dict[str, Any]:
    how = "whole" if size <= _MOST_BYTES_OF_A_FILE else "sampled"
    return {
        "path": path,
        "bytes": size,
        "mtime": os.stat(path).st_mtime,
        "hashed": how if is_hashed else "size only",
        "sha256": _sha256(path, size) if is_hashed else None,
    }


def _sha256(path: str, size: int) -> str:
    digest = hashlib.sha256()
    with files.open_file(path, "rb") as file:
        if size <= _MOST_BYTES_OF_A_FILE:
            digest.update(file.read(_MOST_BYTES_OF_A_FILE + 1))
        else:
            for number in range(_BLOCKS):
                file.seek((size - _BLOCK_BYTES) * number // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def _hash_sizes(sizes: Mapping[str, int]) -> str:
    text = "\n".join(f"{path} {size}" for path, size in sizes.items())
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def _find_files(pattern: str) -> list[str]:
    if files.is_remote(pattern):
        return []
    if os.path.isfile(pattern):
        return [pattern]
    found = _walk(pattern) if os.path.isdir(pattern) else iter(sorted(glob.glob(pattern)))
    return list(itertools.islice(filter(os.path.isfile, found), _MOST_FILES))


def _walk(directory: str) -> Iterator[str]:
    for folder, folders, names in os.walk(directory):
        folders.sort()
        yield from (os.path.join(folder, name) for name in sorted(names))
