"""Writers of text files: CSV tables and lines of JSON."""

import collections
import contextlib
import csv
import io
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Set
from typing import IO, Any
from urllib import parse

from absl import logging

from official_lite.common import files
from official_lite.telemetry.writer import Record, RunInfo, Writer


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
        self._repair_last_line()
        self._opened = contextlib.ExitStack()
        self._file: IO[str] | None = None
        self._is_losing = False
        self._is_synced = True

    def append(self, line: str) -> None:
        """Append a line; the line break is added."""
        try:
            if self._file is None:
                if self._is_losing:
                    self._repair_last_line()
                self._file = self._opened.enter_context(files.open_file(self.path, "a"))
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            self.warn_of_loss(error)
            self._forget()
        else:
            self._is_losing = self._is_synced = False

    def warn_of_loss(self, error: OSError) -> None:
        """Warn that lines are lost, once until a line is written again."""
        if not self._is_losing:
            logging.warning("Can't write %s, so lines are lost: %s", self.path, error)
        self._is_losing = True

    def keep(self, is_kept: Callable[[bytes], bool]) -> int:
        """Remove lines; the file is replaced atomically, and only if a line is removed.

        Args:
            is_kept: Returns whether to keep a line. It is called with the last line first.

        Returns:
            The number of lines removed.
        """
        if not files.exists(self.path):
            return 0
        self.close()
        with files.open_file(self.path, "rb") as file:
            lines = file.read().splitlines(keepends=True)
        kept = [line for line in reversed(lines) if is_kept(line)][::-1]
        if len(kept) == len(lines):
            return 0
        try:
            files.write_bytes(self.path, b"".join(kept))
        except OSError as error:
            logging.warning("Can't write %s, so it keeps outdated lines: %s", self.path, error)
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
            logging.warning("Can't flush %s to disk: %s", self.path, error)

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        self._opened.close()
        self._file = None

    def _forget(self) -> None:
        """Close the file after a failed write and remove a partially written line."""
        # Closing the file tries to write the rest of its buffer, which may fail again.
        with contextlib.suppress(OSError):
            self.close()
        self._opened, self._file = contextlib.ExitStack(), None
        # If the file can't be opened for the repair, the next call of `append` tries again.
        with contextlib.suppress(OSError):
            self._repair_last_line()

    def _repair_last_line(self) -> None:
        """Remove an incomplete last line of a local file."""
        if files.is_remote(self.path) or not files.exists(self.path):
            return
        with files.open_file(self.path, "r+b") as file:
            content = file.read()
            if not content or content.endswith(b"\n"):
                return
            kept = content.rfind(b"\n") + 1
            file.truncate(kept)
        logging.warning(
            "Removed an incomplete last line (%d bytes) from %s.", len(content) - kept, self.path
        )


class CsvWriter(Writer):
    """Appends one row per record to the table of the record's split: `step`, then the values.

    A value with a new name adds a column on the right. The table is then rewritten atomically, and
    the new column is empty in earlier rows. A resumed run appends to the existing tables, after
    `rewind` has removed the rows of steps that will be trained again. Each row is passed to the
    operating system immediately, so a killed process loses at most the row it was writing; an
    incomplete row is removed when the table is next opened.

    Args:
        path: Path from which the table paths are derived: `runs/mnist/metrics.csv` creates
            `runs/mnist/metrics_train.csv` and so on. Special characters of a split are escaped as
            in URLs: `eval/digits` is written to `metrics_eval%2Fdigits.csv`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._stem, self._extension = os.path.splitext(os.fspath(path))
        # Maps the path of each CSV file to its table.
        self._tables: dict[str, _Table] = {}
        self._rewound_to: int | None = None

    def write(self, record: Record) -> None:
        # Special characters are escaped, not replaced by `_`, so that `a/b` and `a_b` are two
        # tables.
        split = re.sub(r"[^\w.-]", lambda found: parse.quote(found[0], safe=""), record.split)
        table = self._table(f"{self._stem}_{split}{self._extension}")
        key, values = {"step": record.step}, record.flat()
        if record.step == self._rewound_to:
            table.keep(lambda row: _step_of(row) != record.step or row.keys().isdisjoint(values))
        # `key` is merged twice: first so that `step` is the first column, and last so that a value
        # named `step` can't replace it.
        table.append({**key, **values, **key})

    def sync(self) -> None:
        # Iterate over a copy: this method may run in the thread that saves a checkpoint, while
        # another thread adds a table.
        for table in list(self._tables.values()):
            table.sync()

    def rewind(self, step: int) -> None:
        self._rewound_to = step
        directory, stem = os.path.split(self._stem)
        for name in files.list_names(directory or "."):
            if name.startswith(f"{stem}_") and name.endswith(self._extension):
                self._table(os.path.join(directory, name)).rewind(step)

    def close(self) -> None:
        for table in self._tables.values():
            table.close()

    def _table(self, path: str) -> "_Table":
        if path not in self._tables:
            self._tables[path] = _Table(path)
        return self._tables[path]


def csv_of(run: RunInfo) -> Writer:
    """Build a `CsvWriter` for `metrics_train.csv` and so on in the model directory."""
    return CsvWriter(run.file("metrics.csv"))


class _Table:
    def __init__(self, path: str) -> None:
        self._file = LineFile(path)
        rows = self._read_rows()
        self._columns = rows[0] if rows else []

    def append(self, values: Mapping[str, Any]) -> None:
        known = set(self._columns)  # Searching a list for 10,000 names takes seconds.
        new = [name for name in values if name not in known]
        if new:
            try:
                self._add_columns(new)
            except OSError as error:
                self._file.warn_of_loss(error)
                return
        self._file.append(_to_line(values.get(name, "") for name in self._columns))

    def keep(self, is_kept: Callable[[dict[str, str]], bool]) -> None:
        """Remove the rows for which `is_kept` returns False.

        Args:
            is_kept: Called with the non-empty cells of a row, by column; with the last row first.
        """
        header, *rows = self._read_rows() or [[]]
        kept = [
            row
            for row in reversed(rows)
            if is_kept({n: cell for n, cell in zip(header, row, strict=False) if cell})
        ][::-1]
        if len(kept) == len(rows):
            return
        try:
            self._replace([header, *kept])
        except OSError as error:
            logging.warning("Can't write %s, so it keeps outdated rows: %s", self._file.path, error)
        else:
            logging.info(
                "Removed %d outdated rows from %s.", len(rows) - len(kept), self._file.path
            )

    def rewind(self, step: int) -> None:
        """Remove the rows that do not belong to the state of `step`."""
        is_of_state = _records_of_state(step)
        self.keep(lambda row: is_of_state(_step_of(row), "", row.keys() - {"step"}))

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()

    def _add_columns(self, names: list[str]) -> None:
        rows = self._read_rows()[1:]
        columns = self._columns + names
        self._replace([columns, *(row + [""] * (len(columns) - len(row)) for row in rows)])
        # Assign the columns only after a successful write, so that the next row retries a failed
        # write.
        self._columns = columns

    def _replace(self, rows: Iterable[list[str]]) -> None:
        self._file.close()
        files.write_text(self._file.path, "".join(_to_line(row) + "\n" for row in rows))

    def _read_rows(self) -> list[list[str]]:
        if not files.exists(self._file.path):
            return []
        try:
            rows = list(csv.reader(io.StringIO(files.read_text(self._file.path), newline="")))
            if rows and "step" not in rows[0]:
                raise ValueError("its header has no column `step`")
        except (csv.Error, ValueError) as error:
            self._file.close()
            files.set_aside(self._file.path, error)
            return []
        return rows


def _step_of(row: Mapping[str, str]) -> int:
    """Return the step of a row, or -1 if the row was not written by this writer."""
    text = row.get("step", "")
    return int(text) if text.isdecimal() else -1


def _to_line(cells: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


class JsonLinesWriter(Writer):
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
        self._file = LineFile(path)
        self._clock = clock
        self._rewound_to: int | None = None

    def write(self, record: Record) -> None:
        wall_time = round(self._clock(), 3)
        key = {"step": record.step, "split": record.split, "wall_time": wall_time}
        if record.step == self._rewound_to:
            self._file.keep(lambda line: not _is_repeated(line, record))
        # `key` is merged twice: first so that its fields come first, and last so that values of the
        # same names can't replace them.
        self._file.append(to_json({**key, **record.flat(), **key}))

    def sync(self) -> None:
        self._file.sync()

    def rewind(self, step: int) -> None:
        self._rewound_to = step
        is_of_state = _records_of_state(step)

        def is_kept(line: bytes) -> bool:
            values = _parse(line)
            names = values.keys() - {"step", "split", "wall_time"}
            return not values or is_of_state(values["step"], str(values.get("split")), names)

        removed = self._file.keep(is_kept)
        if removed:
            logging.info("Removed %d outdated records from %s.", removed, self._file.path)

    def close(self) -> None:
        self._file.close()


def jsonl_of(run: RunInfo) -> Writer:
    """Build a `JsonLinesWriter` for `metrics.json` in the model directory."""
    return JsonLinesWriter(run.file("metrics.json"))


def _records_of_state(step: int) -> Callable[[int, str, Set[str]], bool]:
    """Return a function that returns whether a record belongs to the state at `step`.

    Records of later steps do not. Neither does a record at `step` with a value that was written
    again later, for example by an evaluation before training resumed.

    Args:
        step: The step of the state from which training continues.

    Returns:
        A function of the step, the split and the names of the values of a record. Call it with the
        last record first.
    """
    later: dict[str, set[str]] = collections.defaultdict(set)

    def is_of_state(record_step: int, split: str, names: Set[str]) -> bool:
        if record_step != step:
            return record_step < step
        is_repeated = not names.isdisjoint(later[split])
        later[split] |= names
        return not is_repeated

    return is_of_state


def _parse(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line; empty if the line is invalid or lacks an integer `step`."""
    try:
        values = files.parse_json(line)
    except ValueError:
        return {}
    return values if isinstance(values.get("step"), int) else {}


def _is_repeated(line: bytes, record: Record) -> bool:
    values = _parse(line)
    is_same = (values.get("step"), values.get("split")) == (record.step, record.split)
    return is_same and not values.keys().isdisjoint(record.flat())


def to_json(values: Mapping[str, Any]) -> str:
    """Return `values` as one line of valid JSON, with `null` for non-finite numbers."""
    return files.to_json(values)
