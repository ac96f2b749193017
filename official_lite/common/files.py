"""File operations: local paths without TensorFlow, remote paths (`gs://…`) by `tf.io.gfile`."""

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import IO, Any

from official_lite.common import errors

__all__ = [
    "create_text",
    "exists",
    "is_remote",
    "list_names",
    "makedirs",
    "open_file",
    "read_text",
    "remove",
    "remove_temporaries",
    "remove_all",
    "rename",
    "size",
    "sync",
    "truncate",
    "write_bytes",
    "write_text",
    "require_subdirectory",
    "stays_inside",
]


# Matches the temporary files that `write_text` creates and then renames.
_TEMPORARY = re.compile(r"(.+)\.[0-9a-f]{32}\.tmp")


def is_remote(path: str) -> bool:
    """Return whether the path is on a remote file system, such as `gs://bucket/run`."""
    return "://" in path


def exists(path: str) -> bool:
    """Return whether a file or directory exists."""
    return bool(_gfile().exists(path)) if is_remote(path) else os.path.exists(path)


def makedirs(path: str) -> None:
    """Create a directory and its parents unless they exist."""
    if is_remote(path):
        _gfile().makedirs(path)
    else:
        os.makedirs(path, exist_ok=True)


def list_names(path: str) -> list[str]:
    """Return the sorted names in a directory; an empty list if there is no such directory."""
    if is_remote(path):
        names = _gfile().listdir(path) if _gfile().isdir(path) else []
        return sorted(name.rstrip("/") for name in names)
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def size(path: str) -> int:
    """Return the size of a file in bytes."""
    return int(_gfile().stat(path).length) if is_remote(path) else os.stat(path).st_size


@contextlib.contextmanager
def open_file(path: str, mode: str) -> Iterator[IO[Any]]:
    """Open a file; text is UTF-8.

    Raises:
        OSError: The file cannot be opened, whatever error the file system reports.
    """
    if not is_remote(path):
        with open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
        return
    # Only a remote path needs TensorFlow.
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(path, mode) as file:
            yield file
    except tf.errors.OpError as error:
        raise OSError(str(error)) from error


def read_text(path: str) -> str:
    """Return the contents of a UTF-8 file."""
    with open_file(path, "r") as file:
        return str(file.read())


def write_text(path: str, text: str) -> None:
    """Write a UTF-8 file atomically: readers see either the old text or the new text.

    This holds even after a loss of power.
    """
    write_bytes(path, text.encode())


def write_bytes(path: str, content: bytes) -> None:
    """Write a file atomically; see `write_text`."""
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open_file(temporary, "wb") as file:
            file.write(content)
            if not is_remote(path):
                file.flush()
                os.fsync(file.fileno())
        rename(temporary, path)
    except BaseException:
        if exists(temporary):
            remove(temporary)
        raise


def create_text(path: str, text: str) -> None:
    """Write a UTF-8 file that must not exist yet.

    If several processes try at once, exactly one succeeds. On a remote file system, this is likely
    but not guaranteed.

    Raises:
        FileExistsError: The file exists.
    """
    if is_remote(path):
        if exists(path):
            raise FileExistsError(path)
        write_text(path, text)
        return
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)


def rename(source: str, target: str) -> None:
    """Rename a file and replace any existing target."""
    if is_remote(source):
        _gfile().rename(source, target, overwrite=True)
    else:
        os.replace(source, target)


def remove(path: str) -> None:
    """Remove a file."""
    if is_remote(path):
        _gfile().remove(path)
    else:
        os.remove(path)


def sync(path: str) -> None:
    """Flush a file from the operating system to the disk."""
    if is_remote(path):
        return
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def truncate(path: str, size: int) -> None:
    """Truncate a file to `size` bytes."""
    if not is_remote(path):
        with open(path, "r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())
        return
    with open_file(path, "rb") as file:
        kept = file.read(size)
    with open_file(path, "wb") as file:
        file.write(kept)


def remove_temporaries(directory: str, is_mine: Callable[[str], bool] = lambda name: True) -> None:
    """Remove files that processes killed in `write_text` left in a directory.

    Args:
        directory: The directory. Subdirectories are not searched.
        is_mine: Returns whether no other running process writes a file of this name.
    """
    for name in list_names(directory):
        matched = _TEMPORARY.fullmatch(name)
        if matched and is_mine(matched.group(1)):
            remove(os.path.join(directory, name))


def remove_all(path: str) -> None:
    """Remove a file or a directory tree; for a link, remove only the link itself.

    `tf.io.gfile.rmtree` would remove the target of the link.
    """
    path = path.rstrip("/")
    if is_remote(path):
        # A remote file system has no links.
        is_directory = _gfile().isdir(path)
        _gfile().rmtree(path) if is_directory else _gfile().remove(path)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


def _gfile() -> ModuleType:
    # Only a remote path needs TensorFlow.
    import tensorflow as tf

    return tf.io.gfile


def stays_inside(path: str) -> bool:
    """Return whether a path is relative and stays inside the directory that it is joined to."""
    is_relative = not os.path.isabs(path) and "://" not in path
    return is_relative and path.isprintable() and ".." not in path.replace("\\", "/").split("/")


def require_subdirectory(path: str, field: str) -> None:
    """Check that a path is the name of a subdirectory or a relative path to one.

    Raises:
        ConfigValueError: The path leads out of the directory or has control characters.
    """
    if not stays_inside(path):
        raise errors.ConfigValueError(
            f"`{field}` must be the name of a subdirectory, without a leading slash, `..` or "
            f"control characters; got {path!r}."
        )
