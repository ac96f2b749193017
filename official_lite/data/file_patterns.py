"""Expansion of the paths and patterns in a config to existing files."""

from collections import Counter
from collections.abc import Iterator, Sequence

import tensorflow as tf
from absl import logging

from official_lite.common import errors, files
from official_lite.data import input_paths

__all__ = ["match_files"]

_GLOB_CHARACTERS = "*?["


def match_files(input_path: Sequence[str] | str, *, directories: bool = False) -> list[str]:
    """Return the files that `input_path` names, sorted alphabetically within each pattern.

    The order is the same on every host, whatever order the file system lists the files in.

    Args:
        input_path: A path or a pattern with `*`, `?` or `[ab]`, a comma-separated list of these, or
            a sequence of such strings.
        directories: Whether the paths are those of directories instead of files.

    Raises:
        ConfigValueError: `input_path` is neither a string nor a sequence of strings.
        DataError: A path does not exist or is of the other kind, a pattern matches nothing, or all
            files are empty.
    """
    expand = _expand_directories if directories else _expand
    found = [file for pattern in _patterns(input_path) for file in expand(pattern)]
    # A directory stands for all files in it, but a pattern only for the files that match.
    input_paths.remember(found if directories else _patterns(input_path))
    if not found:
        raise errors.DataError(f"`input_path` {input_path!r} contains no file names.")
    repeated = [file for file, count in Counter(found).items() if count > 1]
    if repeated:
        logging.warning("`input_path` lists %d files more than once: %s", len(repeated), repeated)
    # This stops at the first file that is not empty, so it rarely checks more than one.
    if not directories and all(tf.io.gfile.stat(file).length == 0 for file in found):
        raise errors.DataError(
            f"0 examples matched {input_path!r}: all {len(found)} files are empty, such as "
            f"{found[0]}."
        )
    return found


def _patterns(input_path: Sequence[str] | str) -> Iterator[str]:
    entries = [input_path] if isinstance(input_path, str) else input_path
    if not isinstance(entries, (list, tuple)) or not all(isinstance(e, str) for e in entries):
        raise errors.ConfigValueError(
            "`input_path` should be a path or pattern, several of them separated by commas, or a "
            f"list of such strings; got {input_path!r}."
        )
    for entry in entries:
        patterns = map(str.strip, entry.split(","))
        yield from (files.expand_home(pattern) for pattern in patterns if pattern)


def _expand(pattern: str) -> list[str]:
    # Try the literal path first: `data[old].tfrecord` may be the name of a file.
    if tf.io.gfile.exists(pattern):
        if tf.io.gfile.isdir(pattern):
            raise errors.DataError(
                f"`{pattern}` is a directory. Use a pattern for the files in it, such as "
                f"`{pattern}/*`."
            )
        return [pattern]
    if not any(character in pattern for character in _GLOB_CHARACTERS):
        raise errors.DataError(f"The input file `{pattern}` does not exist.")
    matched = sorted(f for f in tf.io.gfile.glob(pattern) if not tf.io.gfile.isdir(f))
    if not matched:
        raise errors.DataError(
            f"0 examples matched `{pattern}`: the pattern does not match any files."
        )
    return matched


def _expand_directories(pattern: str) -> list[str]:
    found = [pattern] if tf.io.gfile.exists(pattern) else sorted(tf.io.gfile.glob(pattern))
    directories = [path for path in found if tf.io.gfile.isdir(path)]
    if not directories:
        raise errors.DataError(f"0 directories matched `{pattern}`.")
    return directories
