"""The source text of the standard library, as bytes."""

import functools
import gzip
import hashlib
import pathlib
import sysconfig

import numpy as np

from official_lite.common import errors

__all__ = ["gzip_bits_per_byte", "load_bytes", "list_files"]

# Skip installed packages, which differ between machines, and tests, which some systems lack.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}

# The separator before each file. This byte does not occur in source text.
_BEFORE_A_FILE = b"\0"


def list_files(source_dir: str = "") -> list[pathlib.Path]:
    """Return the `*.py` files below a directory, sorted.

    Args:
        source_dir: The directory; empty for the standard library of this interpreter.

    Raises:
        DataError: If there are no such files.
    """
    root = _root(source_dir)
    found = (path.relative_to(root) for path in root.rglob("*.py"))
    kept = sorted(path for path in found if not _LEFT_OUT & set(path.parts))
    if not kept:
        raise errors.DataError(
            f"Found no `*.py` files in {root}. Set `task.source_dir` to a directory that has some."
        )
    return kept


# Cached, because a trainer requests its data more than once.
@functools.lru_cache(maxsize=2)
def load_bytes(source_dir: str, split: str, held_out_percent: int) -> np.ndarray:
    """Return the concatenated files of a split, each preceded by a zero, as uint8.

    Args:
        source_dir: As for `list_files`.
        split: `train` or `validation`.
        held_out_percent: The approximate percentage of files used for validation.
    """
    root, is_validation = _root(source_dir), split == "validation"
    texts = [
        _BEFORE_A_FILE + (root / path).read_bytes()
        for path in list_files(source_dir)
        if (_percentile(path) < held_out_percent) == is_validation
    ]
    return np.frombuffer(b"".join(texts), np.uint8)


def gzip_bits_per_byte(text: np.ndarray) -> float:
    """Return the size of the concatenated text after `gzip -9`, in bits per byte of text."""
    return 8 * len(gzip.compress(text.tobytes(), 9)) / len(text)


def _root(source_dir: str) -> pathlib.Path:
    return pathlib.Path(source_dir or sysconfig.get_path("stdlib"))


def _percentile(path: pathlib.Path) -> int:
    """Hash a path to a number from 0 to 99, which is the same on every machine."""
    digest = hashlib.sha256(path.as_posix().encode()).digest()
    return int.from_bytes(digest[:8], "big") % 100
