"""Rows of Parquet files. A chunk is a row group, or several small ones of one file."""

import concurrent.futures
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from official_lite.common import errors
from official_lite.data.sources import arrow_columns, source

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["ParquetSource"]

_FOOTERS_READ_AT_ONCE = 16


class ParquetSource(source.Source):
    """Parquet files with the same columns.

    The footer of each file is read once, when the source is opened. It holds the number of rows and
    the ranges of integers.

    Args:
        paths: The files.
        columns: The columns to read; empty reads all columns.

    Raises:
        ConfigValueError: PyArrow is not installed.
        DataError: A file can't be read, or its columns are not as requested.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        source.import_library("pyarrow", source="parquet", extra="parquet")
        self.files = list(paths)
        with concurrent.futures.ThreadPoolExecutor(_FOOTERS_READ_AT_ONCE) as pool:
            self._footers = list(pool.map(_read_footer, self.files))
        schema = self._footers[0].schema.to_arrow_schema()
        self._reader = arrow_columns.ColumnReader(schema, columns, self.files[0])
        self._chunks: list[tuple[int, range]] = []
        rows = []
        for number, (file, footer) in enumerate(zip(self.files, self._footers, strict=True)):
            self._reader.require_same(footer.schema.to_arrow_schema(), file)
            groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
            for chunk in source.group_parts(group.total_byte_size for group in groups):
                if num_rows := sum(groups[index].num_rows for index in chunk):
                    self._chunks.append((number, chunk))
                    rows.append(num_rows)
        self.chunk_rows = np.array(rows, np.int64)
        self.specs = self._reader.infer_specs(self._first_rows(0, 1)) if rows else {}

    def read(self, chunk: int) -> source.Columns:
        file, groups = self._chunks[chunk]
        with self._open(file) as opened:
            table = opened.read_row_groups(list(groups), columns=self._reader.read_names)
        return self._reader.to_numpy(table, self.specs)

    def sample(self, chunk: int, num_rows: int) -> source.Columns:
        return self._reader.to_numpy(self._first_rows(chunk, num_rows), self.specs)

    def integer_range(self, name: str) -> tuple[int, int] | None:
        ranges = [self._range_in_file(footer, name) for footer in self._footers]
        known = [one for one in ranges if one is not None]
        if len(known) < len(ranges) or not known:
            return None
        return min(least for least, _ in known), max(greatest for _, greatest in known)

    def _first_rows(self, chunk: int, num_rows: int) -> "pq.pa.Table":
        import pyarrow as pa

        file, groups = self._chunks[chunk]
        with self._open(file) as opened:
            batches = opened.iter_batches(
                num_rows, list(groups), columns=self._reader.read_names, use_threads=False
            )
            return pa.Table.from_batches([next(batches)])

    def _open(self, file: int) -> "pq.ParquetFile":
        import pyarrow.parquet as pq

        # An open file can't be read by several threads.
        return pq.ParquetFile(self.files[file], metadata=self._footers[file])

    def _range_in_file(self, footer: "pq.FileMetaData", name: str) -> tuple[int, int] | None:
        paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
        if name not in paths:
            return None
        column = paths.index(name)
        least, greatest = [], []
        for index in range(footer.num_row_groups):
            statistics = footer.row_group(index).column(column).statistics
            if statistics is None or not statistics.has_min_max:
                return None
            least.append(statistics.min)
            greatest.append(statistics.max)
        return (min(least), max(greatest)) if least else None


def _read_footer(file: str) -> "pq.FileMetaData":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(file)
    except (pa.ArrowException, OSError) as error:
        raise errors.DataError(f"`{file}` can't be read as a Parquet file: {error}") from error
