"""A text file that grows by whole lines."""

import contextlib
import os
import pathlib
from typing import IO

from absl import logging

from official_lite.common import files

__all__ = ["LineFile"]


class LineFile:
    """Appends lines, each of which goes to the operating system at once.

    So a process that is killed loses at most the line it was writing; such a torso is removed
    when the file is opened the next time.

    Args:
      path: The file, created with its folders by the first line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        files.makedirs(os.path.dirname(self.path) or ".")
        if not files.is_remote(self.path):
            _repair_last_line(pathlib.Path(self.path))
        self._opened = contextlib.ExitStack()
        self._file: IO[str] | None = None

    def append(self, line: str) -> None:
        """Writes a line, to which the line break is added."""
        if self._file is None:
            self._file = self._opened.enter_context(files.open_file(self.path, "a"))
        self._file.write(line + "\n")
        self._file.flush()

    def close(self) -> None:
        """Lets go of the file; the next line opens it again."""
        self._opened.close()
        self._file = None


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
