"""Rows of Arrow IPC files, also called Feather, which are mapped into memory.

A chunk is a record batch, or several small ones of one file.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from official_lite.common import errors
from official_lite.data.sources import arrow_columns, source

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowSource"]

# The first bytes of a file with an index; a stream has none.
_MAGIC = b"ARROW1"


class ArrowSource(source.Source):
    """Arrow files, streams or files with an index, with the same columns.

    Compressed files are decompressed once more when the source is opened, to count their rows. The
    rows of a compressed stream stay in memory.

    Args:
        paths: The files.
        columns: The columns to read; empty reads all columns.

    Raises:
        ConfigValueError: PyArrow is not installed.
        DataError: A file can't be read, or its columns are not as requested.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        source.import_library("pyarrow", source="arrow", extra="parquet")
        self.files = list(paths)
        self._opened = [_Batches(path) for path in self.files]
        schema = self._opened[0].schema
        self._reader = arrow_columns.ColumnReader(schema, columns, self.files[0])
        self._chunks: list[tuple[_Batches, range]] = []
        rows = []
        for file, batches in zip(self.files, self._opened, strict=True):
            self._reader.require_same(batches.schema, file)
            for chunk in source.group_parts(num_bytes for _, num_bytes in batches.sizes):
                if num_rows := sum(batches.sizes[index][0] for index in chunk):
                    self._chunks.append((batches, chunk))
                    rows.append(num_rows)
        self.chunk_rows = np.array(rows, np.int64)
        self.specs = self._reader.infer_specs(self._table(0).slice(0, 1)) if rows else {}

    def read(self, chunk: int) -> source.Columns:
        return self._reader.to_numpy(self._table(chunk), self.specs)

    def sample(self, chunk: int, num_rows: int) -> source.Columns:
        return self._reader.to_numpy(self._table(chunk).slice(0, num_rows), self.specs)

    def _table(self, chunk: int) -> "pa.Table":
        batches, numbers = self._chunks[chunk]
        return batches.read(numbers).select(self._reader.read_names)


class _Batches:
    """The record batches of a file.

    Attributes:
        schema: The schema of the file.
        sizes: The number of rows and bytes of each batch.
    """

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        try:
            self._map = pa.memory_map(path)
            self._has_index = self._map.read_at(len(_MAGIC), 0) == _MAGIC
            if self._has_index:
                reader = pa.ipc.open_file(self._map)
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                reader = pa.ipc.open_stream(self._map)
                self._batches = list(reader)
                batches = (batch for batch in self._batches)
            self.schema = reader.schema
            self.sizes = [(batch.num_rows, batch.nbytes) for batch in batches]
        except (pa.ArrowException, OSError) as error:
            raise errors.DataError(f"`{path}` can't be read as an Arrow file: {error}") from error

    def read(self, numbers: range) -> "pa.Table":
        import pyarrow as pa

        if self._has_index:
            reader = pa.ipc.open_file(self._map)
            return pa.Table.from_batches([reader.get_batch(number) for number in numbers])
        return pa.Table.from_batches([self._batches[number] for number in numbers])
