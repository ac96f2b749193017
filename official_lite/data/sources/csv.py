"""Rows of CSV files. A chunk is a range of bytes that ends with a line.

The lines are counted once, when the source is opened, so that reading can start at any row. Line
breaks within quotes belong to a value, as in RFC 4180.
"""

import concurrent.futures
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from official_lite.common import errors
from official_lite.data.sources import arrow, source

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CsvSource"]

_LINE_BREAK, _QUOTE, _RETURN = b"\n"[0], b'"'[0], b"\r"[0]

_BLOCK_BYTES = 1 << 20
_LONG_LINE_BYTES = 1 << 14

_FILES_COUNTED_AT_ONCE = os.cpu_count() or 1


class CsvSource(source.Source):
    """CSV files with a header line, values separated by commas, and the same columns.

    The dtypes are inferred from the first 4 MiB: int64, float64, bool, dates and times as int64,
    or text. An empty value is NaN in a column of floats, and an error in other columns but texts.

    Arguments and errors are those of `ParquetSource`.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        source.import_library("pyarrow.csv", source="csv", extra="parquet")
        self.files = list(paths)
        with concurrent.futures.ThreadPoolExecutor(_FILES_COUNTED_AT_ONCE) as pool:
            headers = list(pool.map(_read_header, self.files))
            counted = list(pool.map(_count_rows, self.files, [size for _, size in headers]))
        self._names = headers[0][0]
        for file, (names, _) in zip(self.files, headers, strict=True):
            _require_same_header(names, self._names, file, self.files[0])
        self._chunks: list[tuple[int, int, int, int]] = []
        for number, chunks in enumerate(counted):
            self._chunks += [(number, *chunk) for chunk in chunks]
        self.chunk_rows = np.array([rows for *_, rows in self._chunks], np.int64)
        self._types: dict[str, pa.DataType] = {}
        self._selected: list[str] = []
        self.specs = {}
        if self._chunks:
            first = self._table(0)
            self._reader = arrow.ColumnReader(first.schema, columns, self.files[0])
            self._selected = self._reader.read_names
            self._types = {name: first.schema.field(name).type for name in self._selected}
            self.specs = self._reader.infer_specs(first)

    def read(self, chunk: int) -> source.Columns:
        return self._reader.to_numpy(self._table(chunk), self.specs)

    def _table(self, chunk: int) -> "pa.Table":
        import pyarrow as pa
        from pyarrow import csv

        number, begin, end, num_rows = self._chunks[chunk]
        with open(self.files[number], "rb") as file:
            file.seek(begin)
            content = file.read(end - begin)
        # Blocks that fit into a cache are the fastest, but a line must fit into a block. The dtypes
        # of the first chunk are inferred from a single block.
        has_long_lines = len(content) > num_rows * _LONG_LINE_BYTES
        is_one_block = has_long_lines or not self._types
        try:
            table = csv.read_csv(
                pa.BufferReader(content),
                csv.ReadOptions(
                    column_names=self._names,
                    block_size=len(content) + 1 if is_one_block else _BLOCK_BYTES,
                    use_threads=False,
                ),
                # Looking for line breaks in values takes a while.
                csv.ParseOptions(newlines_in_values=b'"' in content),
                csv.ConvertOptions(
                    column_types=self._types, include_columns=self._selected or None
                ),
            )
        except pa.ArrowException as error:
            raise errors.DataError(
                f"`{self.files[number]}` can't be read between its bytes {begin} and {end}: "
                f"{error}. The dtypes are those of the first 4 MiB of `{self.files[0]}`."
            ) from error
        if table.num_rows != num_rows:
            raise errors.DataError(
                f"`{self.files[number]}` has {table.num_rows} rows between its bytes {begin} and "
                f"{end}, but {num_rows} lines. Check its quotes and empty lines."
            )
        return table


def _read_header(path: str) -> tuple[list[str], int]:
    """Return the names of the columns, and the number of bytes of the header line."""
    import csv as text_csv

    with open(path, "rb") as file:
        line = file.readline()
    if line.startswith(b"\x1f\x8b"):
        raise errors.DataError(
            f"`{path}` is compressed, so reading can't resume at any row. Decompress it, or "
            "convert it to Parquet."
        )
    try:
        names = next(text_csv.reader([line.decode("utf-8-sig").rstrip("\r\n")]), [])
    except UnicodeDecodeError as error:
        raise errors.DataError(f"`{path}` has a header that is not UTF-8: {error}.") from error
    return names, len(line)


def _require_same_header(
    names: Sequence[str], expected: Sequence[str], file: str, first_file: str
) -> None:
    if names != expected:
        raise errors.DataError(
            f"`{file}` has the columns {', '.join(names)}, unlike `{first_file}`, whose columns "
            f"are {', '.join(expected)}."
        )


def _count_rows(path: str, begin: int) -> list[tuple[int, int, int]]:
    """Divide a file into chunks, and return the first byte, the end and the rows of each."""
    chunks = []
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(begin)
        rest = b""
        while content := file.read(source.CHUNK_BYTES):
            content = rest + content
            is_last = begin + len(content) >= size
            ends = _line_ends(np.frombuffer(content, np.uint8), is_last=is_last)
            if not len(ends):
                rest = content
                continue
            end = len(content) if is_last else int(ends[-1]) + 1
            num_rows = _count_lines(np.frombuffer(content, np.uint8)[:end], ends)
            if num_rows:
                chunks.append((begin, begin + end, num_rows))
            begin, rest = begin + end, content[end:]
    return chunks


def _line_ends(content: npt.NDArray[np.uint8], *, is_last: bool) -> npt.NDArray[np.int64]:
    """Return the positions of the line breaks that end a row; a chunk starts outside quotes."""
    ends = np.flatnonzero(content == _LINE_BREAK)
    quotes = np.flatnonzero(content == _QUOTE)
    if len(quotes):
        # A line break within quotes has an odd number of quotes before it.
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    if is_last and (not len(ends) or ends[-1] != len(content) - 1):
        ends = np.append(ends, len(content))
    return ends


def _count_lines(content: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> int:
    """Return the number of lines that are not empty."""
    lengths = np.diff(ends, prepend=-1) - 1
    short = np.flatnonzero(lengths <= 1)
    is_empty = lengths[short] == 0
    starts = ends[short] - lengths[short]
    of_one = ~is_empty
    is_empty[of_one] = content[starts[of_one]] == _RETURN
    return len(ends) - int(is_empty.sum())
