"""The files that match the paths and patterns of a config, and checksums of these files.

Importing this module does not import TensorFlow. `match_files` supports remote file systems, but
`describe` records only the paths and patterns of remote files.
"""

import contextlib
import glob
import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from absl import logging

from official_lite.common import errors, files

__all__ = [
    "describe",
    "find_differences",
    "forget",
    "forgetting",
    "match_files",
    "normalize",
    "remember",
    "remembered",
]

_GLOB_CHARACTERS = "*?["

# Files of up to this size are hashed completely. Of a larger file, only `_BLOCKS` evenly spaced
# blocks are hashed.
_MAX_BYTES_OF_A_FILE = 1 << 20
_BLOCKS = 16
_BLOCK_BYTES = 1 << 14

# Limits for all files of a run together, so that `describe` takes at most about one second.
_MAX_BYTES = 1 << 28
_MAX_LISTED = 1000
_MAX_FILES = 100_000

# The paths and patterns passed to `remember`, in the order in which they were first passed.
_PATTERNS: dict[str, None] = {}


def match_files(input_path: Sequence[str] | str, *, directories: bool = False) -> list[str]:
    """Return the files that `input_path` names, sorted alphabetically within each pattern.

    The order is the same on every host, whatever order the file system lists the files in.

    Args:
        input_path: A path or a pattern with `*`, `?` or `[ab]`, a comma-separated list of these, or
            a sequence of such strings.
        directories: Whether the paths name directories instead of files.

    Raises:
        ConfigValueError: `input_path` is neither a string nor a sequence of strings.
        DataError: A path does not exist or is of the other kind, a pattern matches nothing, or all
            files are empty.
    """
    # Import TensorFlow only here, because callers that only describe files do not need it.
    import tensorflow as tf

    expand = _expand_directories if directories else _expand
    found = [file for pattern in _patterns(input_path) for file in expand(pattern, tf.io.gfile)]
    # Remember the directories instead of the patterns that match them: `describe` looks for files
    # in a directory only if the path of the directory itself is remembered.
    remember(found if directories else _patterns(input_path))
    if not found:
        raise errors.DataError(
            f"`input_path` {input_path!r} contains no file names. Set it to a path or a pattern."
        )
    repeated = [file for file, count in Counter(found).items() if count > 1]
    if repeated:
        logging.warning(
            "`input_path` matches %d files more than once, so their examples are read more than "
            "once: %s",
            len(repeated),
            repeated,
        )
    # `all` stops at the first file that is not empty, so this rarely checks more than one file.
    if not directories and all(tf.io.gfile.stat(file).length == 0 for file in found):
        raise errors.DataError(
            f"0 examples matched {input_path!r}: every matching file ({len(found)} in all) is "
            f"empty, for example {found[0]}. Set `input_path` to files with examples."
        )
    return found


def _patterns(input_path: Sequence[str] | str) -> Iterator[str]:
    entries = [input_path] if isinstance(input_path, str) else input_path
    if not isinstance(entries, (list, tuple)) or not all(isinstance(e, str) for e in entries):
        raise errors.ConfigValueError(
            "`input_path` must be a path or pattern, a string of paths or patterns separated by "
            f"commas, or a list of such strings; got {input_path!r}."
        )
    for entry in entries:
        patterns = map(str.strip, entry.split(","))
        yield from (files.expand_home(pattern) for pattern in patterns if pattern)


def _expand(pattern: str, gfile: ModuleType) -> list[str]:
    # Try the literal path first, because brackets may be part of a file name: `data[old].tfrecord`.
    if gfile.exists(pattern):
        if gfile.isdir(pattern):
            raise errors.DataError(
                f"`{pattern}` is a directory. Use a pattern for the files in it, such as "
                f"`{pattern}/*`."
            )
        return [pattern]
    if not any(character in pattern for character in _GLOB_CHARACTERS):
        raise errors.DataError(
            f"The input file `{pattern}` does not exist. Correct the path in `input_path`."
        )
    matched = sorted(f for f in gfile.glob(pattern) if not gfile.isdir(f))
    if not matched:
        raise errors.DataError(
            f"0 examples matched `{pattern}`: the pattern does not match any files. Correct the "
            "pattern in `input_path`."
        )
    return matched


def _expand_directories(pattern: str, gfile: ModuleType) -> list[str]:
    found = [pattern] if gfile.exists(pattern) else sorted(gfile.glob(pattern))
    directories = [path for path in found if gfile.isdir(path)]
    if not directories:
        raise errors.DataError(f"No directory matches `{pattern}`. Correct `input_path`.")
    return directories


def remember(patterns: Iterable[str]) -> None:
    """Remember paths and patterns from which this process reads."""
    _PATTERNS.update(dict.fromkeys(patterns))


def remembered() -> list[str]:
    """Return the paths and patterns that this process has remembered since the last `forget`."""
    return list(_PATTERNS)


def forget() -> None:
    """Forget all paths and patterns, at the end of a run."""
    _PATTERNS.clear()


@contextlib.contextmanager
def forgetting() -> Iterator[None]:
    """Enter a context that only checks files, whose paths and patterns are not remembered."""
    before = dict(_PATTERNS)
    try:
        yield
    finally:
        forget()
        remember(before)


def normalize(pattern: str) -> str:
    """Return a path or pattern as it stands in descriptions: absolute, unless it is remote."""
    return pattern if files.is_remote(pattern) else os.path.abspath(pattern)


def describe(patterns: Iterable[str]) -> list[dict[str, Any]]:
    """Describe the files that match each pattern, so that `find_differences` can compare them.

    Small files are hashed completely, and larger files at fixed offsets. Only the first 1000 files
    are listed; the names and sizes of the other files are hashed. Files after the first 256 MiB of
    hashed bytes, and files that can't be read, are compared by size only.

    Args:
        patterns: Paths of files and directories, and patterns. A directory stands for all files in
            it and below.

    Returns:
        A JSON-serializable mapping for each pattern.
    """
    described = []
    num_listed = num_bytes = 0
    for pattern in patterns:
        pattern = normalize(pattern)
        sizes = _find_sizes(pattern)
        listed = []
        for path in itertools.islice(sizes, max(0, _MAX_LISTED - num_listed)):
            is_small = sizes[path] <= _MAX_BYTES_OF_A_FILE
            cost = sizes[path] if is_small else _BLOCKS * _BLOCK_BYTES
            is_hashed = num_bytes + cost <= _MAX_BYTES
            num_bytes += cost if is_hashed else 0
            listed.append(_describe_file(path, sizes[path], is_hashed))
        num_listed += len(listed)
        described.append(
            {
                "pattern": pattern,
                "num_files": len(sizes),
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
    sizes = _find_sizes(pattern)
    recorded = {str(each["path"]): each for each in described["files"]}
    for path, each in recorded.items():
        if path not in sizes:
            yield path, f"{each['bytes']} bytes", "no such file"
        elif sizes[path] != each["bytes"]:
            yield path, f"{each['bytes']} bytes", f"{sizes[path]} bytes"
        elif each["sha256"] is not None and (found := _sha256(path, sizes[path])) != each["sha256"]:
            how = "" if each["hashed"] == "whole" else " of samples"
            found = f"sha256{how} {found}" if found else "an unreadable file"
            yield path, f"sha256{how} {each['sha256']}", found
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
    how = "whole" if size <= _MAX_BYTES_OF_A_FILE else "sampled"
    sha256 = _sha256(path, size) if is_hashed else None
    if is_hashed and sha256 is None:
        how = "unreadable"
    mtime = None
    with contextlib.suppress(OSError):
        mtime = os.stat(path).st_mtime
    return {
        "path": path,
        "bytes": size,
        "mtime": mtime,
        "hashed": how if is_hashed else "size only",
        "sha256": sha256,
    }


def _sha256(path: str, size: int) -> str | None:
    """Return the SHA-256 of a small file or of blocks of a large file; None if reading fails."""
    digest = hashlib.sha256()
    try:
        with files.open_file(path, "rb") as file:
            if size <= _MAX_BYTES_OF_A_FILE:
                digest.update(file.read(_MAX_BYTES_OF_A_FILE + 1))
            else:
                for number in range(_BLOCKS):
                    file.seek((size - _BLOCK_BYTES) * number // (_BLOCKS - 1))
                    digest.update(file.read(_BLOCK_BYTES))
    except OSError:
        return None
    return digest.hexdigest()


def _hash_sizes(sizes: Mapping[str, int]) -> str:
    text = "\n".join(f"{path} {size}" for path, size in sizes.items())
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def _find_sizes(pattern: str) -> dict[str, int]:
    """Return the sizes of the files that match a pattern, except for files that have vanished."""
    sizes: dict[str, int] = {}
    for path in _find_files(pattern):
        with contextlib.suppress(OSError):
            sizes[path] = files.size(path)
    return sizes


def _find_files(pattern: str) -> list[str]:
    if files.is_remote(pattern):
        return []
    if os.path.isfile(pattern):
        return [pattern]
    found = _walk(pattern) if os.path.isdir(pattern) else iter(sorted(glob.glob(pattern)))
    return list(itertools.islice(filter(os.path.isfile, found), _MAX_FILES))


def _walk(directory: str) -> Iterator[str]:
    for folder, folders, names in os.walk(directory):
        folders.sort()
        yield from (os.path.join(folder, name) for name in sorted(names))
