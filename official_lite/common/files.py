"""File operations: local paths without TensorFlow, remote paths (`gs://…`) by `tf.io.gfile`."""

import contextlib
import errno
import itertools
import json
import math
import numbers
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import IO, Any

from absl import logging

from official_lite.common import errors, suggestions

# Matches the temporary files that `write_text` creates and then renames.
_TEMPORARY = re.compile(r"(.+)\.[0-9a-f]{32}\.tmp")
# The errors of a file system that has no hard links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


def is_remote(path: str) -> bool:
    """Return whether the path is on a remote file system, such as `gs://bucket/run`."""
    return "://" in os.fspath(path)


def expand_home(path: str) -> str:
    """Replace `~` at the beginning of a path with the home directory, as a shell does.

    A shell does not expand `~` inside an argument such as `--model_dir=~/run`.
    """
    return os.path.expanduser(path) if path and path.startswith("~") else path


def exists(path: str) -> bool:
    """Return whether a file or directory exists."""
    if not is_remote(path):
        return os.path.exists(path)
    with _gfile() as gfile:
        return bool(gfile.exists(path))


def makedirs(path: str) -> None:
    """Create a directory and its parents unless they exist."""
    if is_remote(path):
        with _gfile() as gfile:
            gfile.makedirs(path)
    else:
        os.makedirs(path, exist_ok=True)


def list_names(path: str) -> list[str]:
    """Return the sorted names in a directory; an empty list if there is no such directory."""
    if is_remote(path):
        with _gfile() as gfile:
            names = gfile.listdir(path) if gfile.isdir(path) else []
        return sorted(name.rstrip("/") for name in names)
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def did_you_mean(path: str) -> str:
    """Return a sentence that suggests existing paths similar to a missing one; empty if none is."""
    parent, name = os.path.split(path.rstrip("/"))
    try:
        names = list_names(parent or os.curdir)
    except OSError:
        names = []
    near = suggestions.nearest(name, names)
    return suggestions.did_you_mean(path, [os.path.join(parent, each) for each in near])


def require_directory(path: str) -> None:
    """Check that a directory exists.

    Raises:
        ConfigValueError: There is no such directory. The message suggests similar paths.
    """
    if not exists(path):
        message = f"The directory {path} does not exist. {did_you_mean(path)}"
        raise errors.ConfigValueError(message.rstrip())


def size(path: str) -> int:
    """Return the size of a file in bytes."""
    if not is_remote(path):
        return os.stat(path).st_size
    with _gfile() as gfile:
        return int(gfile.stat(path).length)


@contextlib.contextmanager
def open_file(path: str, mode: str) -> Iterator[IO[Any]]:
    """Open a regular file; text is UTF-8.

    Other paths are refused: opening a pipe would block until another process opens its other end,
    and reading a device may never end. A file that is changed in place must not be a link either,
    because the change would affect a file outside the directory.

    Raises:
        errors.NotAFileError: The path is not a regular file.
        OSError: The file cannot be opened, whatever error the file system reports.
    """
    if not is_remote(path):
        encoding = None if "b" in mode else "utf-8"
        # Check the descriptor instead of the path, so that the file can't be replaced between the
        # check and the opening.
        with _naming(path), open(path, mode, encoding=encoding, opener=_open_regular) as file:
            yield file
        return
    with _gfile() as gfile, gfile.GFile(path, mode) as file:
        yield file


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Add the path to I/O errors, which the operating system raises without a path."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def _open_regular(path: str, flags: int) -> int:
    """Open a file like `os.open`, but without blocking and only if it is a regular file."""
    if flags & (os.O_APPEND | os.O_RDWR):
        flags |= os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        # ENXIO means that the path is a pipe without a reader, or a socket.
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise _not_a_file(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_file(path)
    return descriptor


def require_regular(path: str) -> None:
    """Check that a local path, if anything is there, is a regular file or a link to one.

    Raises:
        errors.NotAFileError: The path is something else.
    """
    if not is_remote(path) and os.path.lexists(path) and not os.path.isfile(path):
        raise _not_a_file(path)


def _not_a_file(path: str) -> errors.NotAFileError:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        kind = f"a symbolic link to {os.readlink(path)}"
    elif stat.S_ISDIR(mode):
        kind = "a directory"
    elif stat.S_ISFIFO(mode):
        kind = "a named pipe"
    else:
        kind = "a socket or device"
    return errors.NotAFileError(f"{path} is {kind}; expected a regular file. Move or remove it.")


def read_text(path: str) -> str:
    """Return the contents of a UTF-8 file.

    Raises:
        errors.ConfigValueError: The file is not UTF-8 text.
        OSError: The file cannot be read.
    """
    with open_file(path, "r") as file:
        try:
            return str(file.read())
        except UnicodeDecodeError as error:
            raise errors.ConfigValueError(f"{path} is not UTF-8 text: {error}.") from error


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object in a UTF-8 file.

    Raises:
        ValueError: The contents are something else; the message says what.
        OSError: The file cannot be read.
    """
    return parse_json(read_text(path))


def parse_json(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object in a text.

    Raises:
        ValueError: The text is something else; the message says what.
    """
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError(f"expected a JSON object, got {type(content).__name__}")
    return content


def to_json(value: object, *, indent: int | None = None, ensure_ascii: bool = True) -> str:
    """Return a value as valid JSON, in which NaN and infinity become `null`.

    NumPy's numbers become numbers. Other objects that JSON does not support become text.
    """
    plain = _to_plain(value)
    return json.dumps(plain, indent=indent, ensure_ascii=ensure_ascii, default=str)


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(inner) for inner in value]
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return float(value) if math.isfinite(value) else None
    is_numpy_integer = isinstance(value, numbers.Integral) and not isinstance(value, int)
    return int(value) if is_numpy_integer else value


def set_aside(path: str, reason: object) -> None:
    """Rename a damaged file to `<path>.damaged`, or the first such name with a number, and warn.

    The caller can then write a new file without losing the damaged one.
    """
    taken = list_names(os.path.dirname(path) or ".")
    names = (f"{path}.damaged{number or ''}" for number in itertools.count())
    aside = next(name for name in names if os.path.basename(name) not in taken)
    logging.warning("Renamed %s to %s, because it can't be read: %s", path, aside, reason)
    rename(path, aside)


def write_text(path: str, text: str, *, is_durable: bool = True) -> None:
    """Write a UTF-8 file atomically: readers see either the old text or the new text.

    Args:
        path: The path.
        text: The text.
        is_durable: Whether the write is atomic even if the power fails; takes a few milliseconds.
    """
    write_bytes(path, text.encode(), is_durable=is_durable)


def write_bytes(path: str, content: bytes, *, is_durable: bool = True) -> None:
    """Write a file atomically; see `write_text`."""
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open_file(temporary, "wb") as file:
            file.write(content)
            if is_durable and not is_remote(path):
                file.flush()
                os.fsync(file.fileno())
        rename(temporary, path)
    except BaseException as error:
        if exists(temporary):
            remove(temporary)
        if isinstance(error, IsADirectoryError):
            raise _not_a_file(path) from error
        if isinstance(error, OSError) and error.filename == temporary:
            error.filename = path  # Report the path that users know, not the temporary file.
        raise


def create_text(path: str, text: str) -> None:
    """Write a UTF-8 file that must not exist yet.

    If several processes try at once, exactly one succeeds, and readers never see a part of the
    text. On a remote file system, this is likely but not guaranteed.

    Raises:
        FileExistsError: The file exists.
    """
    if is_remote(path):
        if exists(path):
            raise FileExistsError(path)
        write_text(path, text)
        return
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open_file(temporary, "x") as file:
            file.write(text)
        # Unlike a rename, a link does not replace an existing file.
        os.link(temporary, path)
    except OSError as error:
        # If the file exists, its creator may also have removed the temporary file.
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error
        if error.errno not in _NO_LINKS:
            error.filename = path  # Report the path that users know, not the temporary file.
            raise
        with open_file(path, "x") as file:
            file.write(text)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)


def rename(source: str, target: str) -> None:
    """Rename a file and replace any existing target."""
    if is_remote(source):
        with _gfile() as gfile:
            gfile.rename(source, target, overwrite=True)
    else:
        os.replace(source, target)


def remove(path: str) -> None:
    """Remove a file."""
    if is_remote(path):
        with _gfile() as gfile:
            gfile.remove(path)
    else:
        os.remove(path)


def sync(path: str) -> None:
    """Flush a file from the operating system to the disk."""
    if is_remote(path):
        return
    with open_file(path, "rb") as file:
        os.fsync(file.fileno())


def truncate(path: str, size: int) -> None:
    """Truncate a file to `size` bytes."""
    if not is_remote(path):
        with open_file(path, "r+b") as file:
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
        with _gfile() as gfile:
            gfile.rmtree(path) if gfile.isdir(path) else gfile.remove(path)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


def replace_tree(source: str, target: str) -> None:
    """Rename a directory tree, and remove the file or the tree that was at `target` before.

    Readers never see a mixture of both, but for a moment they may find nothing. A process that is
    killed in that moment leaves the previous tree as `<target>.replaced`.
    """
    previous = f"{target}.replaced"
    if exists(previous):
        remove_all(previous)
    if exists(target):
        rename(target, previous)
    rename(source, target)
    if exists(previous):
        remove_all(previous)


@contextlib.contextmanager
def _gfile() -> Iterator[ModuleType]:
    """Provide `tf.io.gfile` for a remote path, and convert TensorFlow errors to `OSError`."""
    # Import TensorFlow here, because only remote paths need it.
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        raise OSError(str(error)) from error
