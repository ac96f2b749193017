"""Records as lines of JSON."""

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import IO, Any

from absl import logging

from official_lite.common import files
from official_lite.telemetry import writer
from official_lite.telemetry.record import Record


class JsonLinesWriter(writer.Writer):
    """Appends one JSON object a line: `step`, `split`, then the values.

    Nested names are joined by `/`; a value that is not finite is `null`, since JSON has no word
    for it. A run that restarts appends to the file. Each line goes to the operating system at
    once, so a process that is killed loses at most the line it was writing; such a torso is
    removed when the file is opened the next time.

    Args:
      path: The file, created with its folders when it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        files.makedirs(os.path.dirname(self._path) or ".")
        if not files.is_remote(self._path):
            _repair_last_line(pathlib.Path(self._path))
        self._opened = contextlib.ExitStack()
        self._file: IO[str] | None = None

    def write(self, record: Record) -> None:
        key = {"step": record.step, "split": record.split}
        # Twice: the first keeps them in front, the second keeps a value from taking their name.
        self._open().write(to_json({**key, **record.flat(), **key}) + "\n")
        self.flush()

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        self._opened.close()
        self._file = None

    def _open(self) -> IO[str]:
        if self._file is None:
            self._file = self._opened.enter_context(files.open_file(self._path, "a"))
        return self._file


def to_json(values: Mapping[str, Any]) -> str:
    """One line of valid JSON; a number that is not finite is `null`."""
    return json.dumps({name: _finite_or_none(value) for name, value in values.items()})


def _finite_or_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite_or_none(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
