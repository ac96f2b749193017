"""A writer that writes one CSV table per split."""

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from absl import logging

from official_lite.common import files
from official_lite.telemetry import line_file, writer
from official_lite.telemetry.record import Record


class CsvWriter(writer.Writer):
    """Appends one row per record to the table of the record's split: `step`, then the values.

    A value with a new name adds a column on the right. The table is then rewritten atomically, and
    the new column is empty in earlier rows. A resumed run appends to the existing tables, after
    `rewind` has removed the rows of steps that will be trained again. Each row is passed to the
    operating system immediately, so a killed process loses at most the row it was writing; an
    incomplete row is removed when the table is next opened.

    Args:
      path: Path from which the table paths are derived: `runs/mnist/metrics.csv` creates
        `runs/mnist/metrics_train.csv` and so on.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._stem, self._extension = os.path.splitext(os.fspath(path))
        # The tables by path.
        self._tables: dict[str, _Table] = {}
        self._rewound_to: int | None = None

    def write(self, record: Record) -> None:
        split = re.sub(r"[^\w.-]", "_", record.split)
        table = self._table(f"{self._stem}_{split}{self._extension}")
        key, values = {"step": record.step}, record.flat()
        if record.step == self._rewound_to:
            table.keep(lambda row: _step_of(row) != record.step or row.keys().isdisjoint(values))
        # The key is given twice: the first makes `step` the first column, the second prevents a
        # value named `step` from replacing it.
        table.append({**key, **values, **key})

    def sync(self) -> None:
        for table in self._tables.values():
            table.sync()

    def rewind(self, step: int) -> None:
        self._rewound_to = step
        directory, stem = os.path.split(self._stem)
        for name in files.list_names(directory or "."):
            if name.startswith(f"{stem}_") and name.endswith(self._extension):
                self._table(os.path.join(directory, name)).keep(lambda row: _step_of(row) <= step)

    def close(self) -> None:
        for table in self._tables.values():
            table.close()

    def _table(self, path: str) -> "_Table":
        if path not in self._tables:
            self._tables[path] = _Table(path)
        return self._tables[path]


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

    def keep(self, is_kept: Callable[[dict[str, str]], bool]) -> None:
        """Remove the rows for which `is_kept` returns False.

        Args:
          is_kept: Called with the non-empty cells of a row, by column.
        """
        header, *rows = self._read_rows() or [[]]
        named = ({n: cell for n, cell in zip(header, row, strict=False) if cell} for row in rows)
        kept = [row for row, cells in zip(rows, named, strict=True) if is_kept(cells)]
        if len(kept) == len(rows):
            return
        try:
            self._replace([header, *kept])
        except OSError as error:
            logging.warning("%s can't be written, and keeps old rows: %s", self._file.path, error)
        else:
            logging.info("Removed %d rows of %s.", len(rows) - len(kept), self._file.path)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()

    def _add_columns(self, names: list[str]) -> None:
        rows = self._read_rows()[1:]
        columns = self._columns + names
        self._replace([columns, *(row + [""] * (len(columns) - len(row)) for row in rows)])
        # Assigned only after the write succeeded, so that the next row retries a failed write.
        self._columns = columns

    def _replace(self, rows: Iterable[list[str]]) -> None:
        self._file.close()
        files.write_text(self._file.path, "".join(_to_line(row) + "\n" for row in rows))

    def _read_rows(self) -> list[list[str]]:
        if not files.exists(self._file.path):
            return []
        return list(csv.reader(io.StringIO(files.read_text(self._file.path), newline="")))


def _step_of(row: Mapping[str, str]) -> int:
    """Return the step of a row, or -1 if the row was not written by this writer."""
    text = row.get("step", "")
    return int(text) if text.isdecimal() else -1


def _to_line(cells: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
