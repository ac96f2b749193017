"""Rows of Hugging Face datasets that `Dataset.save_to_disk` has written."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from official_lite.common import errors
from official_lite.data.sources import arrow_columns, source

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

__all__ = ["HuggingFaceSource"]


class HuggingFaceSource(source.Source):
    """Directories of datasets with the same columns, mapped into memory. A chunk is a slice.

    Values are read as they are stored: an image, for example, is a column `image.bytes` of encoded
    images and a column `image.path`.

    Args:
        paths: The directories of `Dataset.save_to_disk`. For the splits of a `DatasetDict`, these
            are its subdirectories.
        columns: The columns to read; empty reads all columns.

    Raises:
        ConfigValueError: The library `datasets` is not installed.
        DataError: A directory is not a dataset, or its columns are not as requested.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        source.import_library("datasets", source="huggingface", extra="hf")
        self.files = list(paths)
        loaded = [_load(path) for path in self.files]
        schema = loaded[0].features.arrow_schema
        self._reader = arrow_columns.ColumnReader(schema, columns, self.files[0])
        # Slices in the format `arrow` are not copied.
        self._tables: list[datasets.Dataset] = []
        self._chunks: list[tuple[int, int, int]] = []
        for number, (path, dataset) in enumerate(zip(self.files, loaded, strict=True)):
            self._reader.require_same(dataset.features.arrow_schema, path)
            size = source.rows_per_chunk(dataset.data.nbytes, len(dataset))
            self._tables.append(
                dataset.select_columns(self._reader.read_names).with_format("arrow")
            )
            for begin in range(0, len(dataset), size):
                self._chunks.append((number, begin, min(begin + size, len(dataset))))
        self.chunk_rows = np.array([end - begin for _, begin, end in self._chunks], np.int64)
        self.specs = self._reader.infer_specs(self._table(0, 1)) if self._chunks else {}

    def read(self, chunk: int) -> source.Columns:
        return self._reader.to_numpy(self._table(chunk), self.specs)

    def sample(self, chunk: int, num_rows: int) -> source.Columns:
        return self._reader.to_numpy(self._table(chunk, num_rows), self.specs)

    def _table(self, chunk: int, num_rows: int | None = None) -> "pa.Table":
        number, begin, end = self._chunks[chunk]
        return self._tables[number][begin : end if num_rows is None else min(end, begin + num_rows)]


def _load(path: str) -> "datasets.Dataset":
    import datasets

    try:
        loaded = datasets.load_from_disk(path)
    except (OSError, ValueError) as error:
        raise errors.DataError(
            f"`{path}` can't be read as a dataset of Hugging Face: {error} Expected a directory "
            "that `Dataset.save_to_disk` has written."
        ) from error
    if isinstance(loaded, datasets.DatasetDict):
        splits = ", ".join(f"`{os.path.join(path, name)}`" for name in loaded)
        raise errors.DataError(
            f"`{path}` holds several splits. Set `input_path` to one of them: {splits}."
        )
    return loaded
