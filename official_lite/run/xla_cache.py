"""The directory of XLA's compiled programs, which is set before TensorFlow looks for devices."""

import contextlib
import hashlib
import os
import platform
import re
import sys
from typing import IO

from absl import logging

from official_lite.common import files

__all__ = ["use_directory"]

_FLAG = "--tf_xla_persistent_cache_directory"

# The file in which Linux describes the processors.
_PROCESSORS = "/proc/cpuinfo"

# The metadata directories of the packages that contain XLA.
_PACKAGES = re.compile(r"(tensorflow|tf_nightly)(_\w+)?-.*\.dist-info")


def use_directory(directory: str | None) -> None:
    """Keep the programs that XLA compiles for the CPU, so that later processes need not compile.

    XLA identifies a program only by its operations. The name of the subdirectory therefore depends
    on what else determines the program: the processor, the TensorFlow version and the XLA flags.

    Call this function before TensorFlow looks for devices. A later call only logs a warning.

    Args:
        directory: The directory; None keeps no programs. If `TF_XLA_FLAGS` names a directory,
            TensorFlow uses the directory in `TF_XLA_FLAGS`.
    """
    flags = os.environ.get("TF_XLA_FLAGS", "").strip()
    if not directory or _FLAG in flags:
        return
    # Only warn, because the cache affects only the startup time.
    if flags and not flags.startswith("-"):
        logging.warning(
            "`runtime.xla_cache_dir` has no effect, because TF_XLA_FLAGS names a file of flags. "
            "Put the flags themselves into TF_XLA_FLAGS."
        )
        return
    try:
        path = os.path.join(files.expand_home(directory), _compiler_id())
        # Quote the path; otherwise TensorFlow would cut it off at the first space.
        flags = f"{flags} {_FLAG}='{path}' --tf_xla_persistent_cache_device_types=CPU".strip()
        if _has_started():
            logging.warning(
                "`runtime.xla_cache_dir` has no effect, because TensorFlow has already "
                'initialized its devices. Set TF_XLA_FLAGS="%s" in the environment before Python '
                "starts, or use a new process.",
                flags,
            )
            return
        files.makedirs(path)
        _remove_damaged(path)
    except OSError as error:
        logging.warning(
            "`runtime.xla_cache_dir` has no effect: %s. Use a directory in which you can create "
            "files.",
            error,
        )
        return
    os.environ["TF_XLA_FLAGS"] = flags


def _has_started() -> bool:
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    return getattr(context, "_physical_devices", None) is not None


def _remove_damaged(directory: str) -> None:
    """Remove files truncated by a power loss, because TensorFlow would abort when reading them."""
    for name in files.list_names(directory):
        path = os.path.join(directory, name)
        # Another process may remove the file at the same time.
        with contextlib.suppress(FileNotFoundError):
            if name.endswith(".pb") and not _is_whole(path):
                logging.warning("Removing the damaged file %s from the XLA cache.", path)
                files.remove(path)


def _is_whole(path: str) -> bool:
    """Return whether a file consists of complete length-delimited protocol buffer fields."""
    size = files.size(path)
    with files.open_file(path, "rb") as file:
        while file.tell() < size:
            tag, length = _read_varint(file), _read_varint(file)
            if tag & 7 != 2 or not 0 <= length <= size - file.tell():
                return False
            file.seek(length, os.SEEK_CUR)
    return size > 0


def _read_varint(file: IO[bytes]) -> int:
    value = shift = 0
    while byte := file.read(1):
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
    return -1


def _compiler_id() -> str:
    names = {name for path in sys.path for name in files.list_names(path)}
    parts = sorted(filter(_PACKAGES.fullmatch, names))
    flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "TF_XLA_FLAGS")]
    parts += [platform.machine(), *flags]
    if files.exists(_PROCESSORS):
        # Skip fields that do not describe the kind of processor, such as the processor number and
        # the current clock speed.
        first = files.read_text(_PROCESSORS).partition("\n\n")[0]
        parts += re.findall(r"(?im)^(?:model name|cpu part|flags|features)\s*:.*$", first)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
