"""Records as tables, one for each split."""

import csv
import io
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from official_lite.common import files
from official_lite.telemetry import line_file, writer
from official_lite.telemetry.record import Record


class CsvWriter(writer.Writer):
    """Appends one row a record to the table of its split: `step`, then the values.

    A name that comes up for the first time gets a column at the right: the table is written anew,
    in one piece, and is empty there in the rows before. A run that restarts appends to the
    tables. Each row goes to the operating system at once, so a process that is killed loses at
    most the row it was writing; such a torso is removed when the table is opened the next time.

    Args:
      path: `runs/mnist/metrics.csv` makes `runs/mnist/metrics_train.csv` and so on.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._stem, self._extension = os.path.splitext(os.fspath(path))
        self._tables: dict[str, _Table] = {}

    def write(self, record: Record) -> None:
        if record.split not in self._tables:
            split = re.sub(r"[^\w.-]", "_", record.split)
            self._tables[record.split] = _Table(f"{self._stem}_{split}{self._extension}")
        key = {"step": record.step}
        # Twice: the first keeps it in front, the second keeps a value from taking its name.
        self._tables[record.split].append({**key, **record.flat(), **key})

    def close(self) -> None:
        for table in self._tables.values():
            table.close()


class _Table:
    def __init__(self, path: str) -> None:
        self._file = line_file.LineFile(path)
        rows = self._read_rows()
        self._columns = rows[0] if rows else []

    def append(self, values: Mapping[str, Any]) -> None:
        new = [name for name in values if name not in self._columns]
        if new:
            self._add_columns(new)
        self._file.append(_to_line(values.get(name, "") for name in self._columns))

    def close(self) -> None:
        self._file.close()

    def _add_columns(self, names: list[str]) -> None:
        self._file.close()
        rows = self._read_rows()[1:]
        columns = self._columns + names
        padded = [columns, *(row + [""] * (len(columns) - len(row)) for row in rows)]
        files.write_text(self._file.path, "".join(_to_line(row) + "\n" for row in padded))
        # Only now: a writing that failed must be made up for with the next row.
        self._columns = columns

    def _read_rows(self) -> list[list[str]]:
        if not files.exists(self._file.path):
            return []
        return list(csv.reader(io.StringIO(files.read_text(self._file.path), newline="")))


def _to_line(cells: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
