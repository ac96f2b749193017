"""A text file to which whole lines are appended."""

import contextlib
import os
import pathlib
from collections.abc import Callable
from typing import IO

from absl import logging

from official_lite.common import files

__all__ = ["LineFile"]


class LineFile:
    """Appends lines to a file and passes each one to the operating system immediately.

    A killed process therefore loses at most the line it was writing; an incomplete line is removed
    when the file is next opened. When a line can't be written, for example because the disk is
    full, it is lost with a warning and training continues.

    Args:
      path: Path of the file. Its directories are created immediately, the file itself with the
        first line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        files.makedirs(os.path.dirname(self.path) or ".")
        if not files.is_remote(self.path):
            _repair_last_line(pathlib.Path(self.path))
        self._opened = contextlib.ExitStack()
        self._file: IO[str] | None = None
        self._is_losing = False
        self._is_synced = True

    def append(self, line: str) -> None:
        """Append a line; the line break is added."""
        try:
            if self._file is None:
                self._file = self._opened.enter_context(files.open_file(self.path, "a"))
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            if not self._is_losing:
                logging.warning("%s can't be written, and loses lines: %s", self.path, error)
            self._is_losing = True
            self._forget()
        else:
            self._is_losing = self._is_synced = False

    def keep(self, is_kept: Callable[[bytes], bool]) -> int:
        """Remove lines; the file is replaced atomically, and only if a line is removed.

        Args:
          is_kept: Returns whether to keep a line.

        Returns:
          The number of lines removed.
        """
        if not files.exists(self.path):
            return 0
        self.close()
        with files.open_file(self.path, "rb") as file:
            lines = file.read().splitlines(keepends=True)
        kept = [line for line in lines if is_kept(line)]
        if len(kept) == len(lines):
            return 0
        try:
            files.write_bytes(self.path, b"".join(kept))
        except OSError as error:
            logging.warning("%s can't be written, and keeps old lines: %s", self.path, error)
            return 0
        return len(lines) - len(kept)

    def sync(self) -> None:
        """Flush the lines to the disk."""
        if self._is_synced:
            return
        self._is_synced = True
        try:
            files.sync(self.path)
        except OSError as error:
            logging.warning("%s can't be flushed to the disk: %s", self.path, error)

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        self._opened.close()
        self._file = None

    def _forget(self) -> None:
        """Close the file after a failed write and remove a partially written line."""
        # Closing the file tries to write the rest of its buffer, which fails again.
        with contextlib.suppress(OSError):
            self.close()
        self._opened, self._file = contextlib.ExitStack(), None
        if not files.is_remote(self.path):
            _repair_last_line(pathlib.Path(self.path))


def _repair_last_line(path: pathlib.Path) -> None:
    if not path.exists():
        return
    with path.open("r+b") as file:
        content = file.read()
        if not content or content.endswith(b"\n"):
            return
        kept = content.rfind(b"\n") + 1
        file.truncate(kept)
    logging.warning("Removed an incomplete last line (%d bytes) of %s.", len(content) - kept, path)
