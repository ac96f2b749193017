"""Records of ArrayRecord files, the format of Grain. A chunk is a range of records of one file."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from official_lite.common import errors
from official_lite.data.sources import source

if TYPE_CHECKING:
    from array_record.python import array_record_module

__all__ = ["RECORD", "ArrayRecordSource"]

# The only column: the records as they are stored.
RECORD = "record"

# Without read-ahead, a reader can start at any record.
_OPTIONS = "readahead_buffer_size:0"


class ArrayRecordSource(source.Source):
    """ArrayRecord files, whose rows are serialized records.

    Args:
        paths: The files.
        columns: Must be empty, because a decoder selects the features of a record.

    Raises:
        ConfigValueError: The library `array_record` is not installed, or columns are given.
        DataError: A file can't be read.
    """

    has_columns = False

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        source.import_library(
            "array_record.python.array_record_module", source="array_record", extra="arrayrecord"
        )
        if columns:
            raise errors.ConfigValueError(
                f"`columns` is {list(columns)}, but the source 'array_record' has none: its "
                "records are bytes. Select features with `decoder_fn`."
            )
        self.files = list(paths)
        self.specs = {RECORD: tf.TensorSpec([], tf.string)}
        self._chunks: list[tuple[int, int, int]] = []
        for number, path in enumerate(self.files):
            reader = _open(path)
            num_records = reader.num_records()
            reader.close()
            size = source.rows_per_chunk(os.path.getsize(path), num_records)
            for begin in range(0, num_records, size):
                self._chunks.append((number, begin, min(begin + size, num_records)))
        self.chunk_rows = np.array([end - begin for _, begin, end in self._chunks], np.int64)

    def read(self, chunk: int) -> source.Columns:
        number, begin, end = self._chunks[chunk]
        reader = _open(self.files[number])
        records = np.empty(end - begin, object)
        records[:] = reader.read(begin, end)
        reader.close()
        return {RECORD: records}


def _open(path: str) -> "array_record_module.ArrayRecordReader":
    from array_record.python import array_record_module

    try:
        reader = array_record_module.ArrayRecordReader(path, _OPTIONS)
    except (RuntimeError, ValueError) as error:
        raise errors.DataError(f"`{path}` can't be read as an ArrayRecord file: {error}") from error
    if not reader.ok():
        raise errors.DataError(f"`{path}` can't be read as an ArrayRecord file.")
    return reader
