"""A writer that writes records as lines of JSON."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from official_lite.telemetry import line_file, writer
from official_lite.telemetry.record import Record


class JsonLinesWriter(writer.Writer):
    """Appends one JSON object per line: `step`, `split`, `wall_time`, then the values.

    Nested names are joined by `/`. Non-finite values are written as `null`, since JSON cannot
    represent them. A resumed run appends to the existing file, after `rewind` has removed the
    records of steps that will be trained again. Each line is passed to the operating system
    immediately, so a killed process loses at most the line it was writing; an incomplete line is
    removed when the file is next opened.

    Args:
      path: Path of the file. The file and its directories are created if they do not exist.
      clock: Function that returns the time in seconds since 1970.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = line_file.LineFile(path)
        self._clock = clock
        self._rewound_to: int | None = None

    def write(self, record: Record) -> None:
        wall_time = round(self._clock(), 3)
        key = {"step": record.step, "split": record.split, "wall_time": wall_time}
        if record.step == self._rewound_to:
            self._file.keep(lambda line: not _is_repeated(line, record))
        # The key is given twice: the first puts its fields first, the second prevents values of the
        # same name from replacing them.
        self._file.append(to_json({**key, **record.flat(), **key}))

    def sync(self) -> None:
        self._file.sync()

    def rewind(self, step: int) -> None:
        self._rewound_to = step
        removed = self._file.keep(lambda line: _parse(line).get("step", step) <= step)
        if removed:
            logging.info("Removed %d records after step %d: %s", removed, step, self._file.path)

    def close(self) -> None:
        self._file.close()


def _parse(line: bytes) -> dict[str, Any]:
    """Return the object of a line; empty if the line was not written by this writer."""
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    is_record = isinstance(values, dict) and isinstance(values.get("step"), int)
    return values if is_record else {}


def _is_repeated(line: bytes, record: Record) -> bool:
    values = _parse(line)
    is_same = (values.get("step"), values.get("split")) == (record.step, record.split)
    return is_same and not values.keys().isdisjoint(record.flat())


def to_json(values: Mapping[str, Any]) -> str:
    """Return `values` as one line of valid JSON, with `null` for non-finite numbers."""
    return json.dumps({name: _finite_or_none(value) for name, value in values.items()})


def _finite_or_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite_or_none(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
