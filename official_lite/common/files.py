"""Files by path: local ones without TensorFlow, remote ones (`gs://…`) through `tf.io.gfile`."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from types import ModuleType
from typing import IO, Any

__all__ = ["exists", "is_remote", "makedirs", "open_file", "read_text", "write_text"]


def is_remote(path: str) -> bool:
    """Whether the path names another file system, such as `gs://bucket/run`."""
    return "://" in path


def exists(path: str) -> bool:
    """Whether there is a file or folder."""
    return bool(_gfile().exists(path)) if is_remote(path) else os.path.exists(path)


def makedirs(path: str) -> None:
    """Creates a folder and its parents, unless they are there."""
    if is_remote(path):
        _gfile().makedirs(path)
    else:
        os.makedirs(path, exist_ok=True)


@contextlib.contextmanager
def open_file(path: str, mode: str) -> Iterator[IO[Any]]:
    """Opens a file; text is UTF-8.

    Raises:
        OSError: If it can't be opened, whatever the file system calls that.
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
    """The whole of a UTF-8 file."""
    with open_file(path, "r") as file:
        return str(file.read())


def write_text(path: str, text: str) -> None:
    """Writes a UTF-8 file in one piece: a reader sees the old text or the new, never a part."""
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open_file(temporary, "w") as file:
            file.write(text)
        _replace(temporary, path)
    except BaseException:
        if exists(temporary):
            _remove(temporary)
        raise


def _replace(source: str, target: str) -> None:
    if is_remote(source):
        _gfile().rename(source, target, overwrite=True)
    else:
        os.replace(source, target)


def _remove(path: str) -> None:
    if is_remote(path):
        _gfile().remove(path)
    else:
        os.remove(path)


def _gfile() -> ModuleType:
    # Only a remote path needs TensorFlow.
    import tensorflow as tf

    return tf.io.gfile
