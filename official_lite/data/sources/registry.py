"""The sources of rows by the names that `DataConfig.source` accepts, and the interface of a source.

A source divides its rows into chunks, each of which it reads in one call.
"""

import abc
import functools
import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, files, suggestions

__all__ = [
    "CHUNK_BYTES",
    "OF_DIRECTORIES",
    "SOURCES",
    "Columns",
    "Source",
    "group_parts",
    "import_library",
    "open_source",
    "require_known",
    "rows_per_chunk",
]

# Maps the name of a source to its class in `formats`. Creating an object of the class imports the
# library that reads the source.
SOURCES: Mapping[str, str] = {
    "parquet": "ParquetSource",
    "arrow": "ArrowSource",
    "csv": "CsvSource",
    "huggingface": "HuggingFaceSource",
    "array_record": "ArrayRecordSource",
}

# The names of sources whose paths are directories.
OF_DIRECTORIES = frozenset({"huggingface"})

# Maps each column name to an array of values whose first axis is the row. Strings and bytes are
# stored as `bytes` objects.
Columns = Mapping[str, npt.NDArray[np.generic]]

# The name, size and modification time of each file of a path.
_Stamp = tuple[tuple[str, int, int], ...]

# The target size of a chunk in bytes. At this size, the overhead of a call is small compared with
# the read time.
CHUNK_BYTES = 1 << 22

# The maximum number of rows in a chunk, which matters only for tiny rows.
_MAX_ROWS = 1 << 16


class Source(abc.ABC):
    """Rows in chunks, in a fixed order. Threads may read chunks at the same time.

    Attributes:
        files: The files or directories of the source.
        chunk_rows: The number of rows of each chunk, positive, shape (chunks,).
        specs: The dtype and shape of one value of each column.
        has_columns: Whether rows are mappings of columns; if not, a row is the value of the only
            column.
    """

    has_columns: ClassVar[bool] = True

    files: Sequence[str]
    chunk_rows: npt.NDArray[np.int64]
    specs: Mapping[str, tf.TensorSpec]

    @property
    def num_rows(self) -> int:
        """The number of rows of all chunks."""
        return int(self.chunk_rows.sum())

    @abc.abstractmethod
    def read(self, chunk: int) -> Columns:
        """Return all rows of a chunk.

        Raises:
            DataError: A column has values that its spec does not allow.
        """

    def sample(self, chunk: int, num_rows: int) -> Columns:
        """Return the first rows of a chunk, at most `num_rows`."""
        return {name: values[:num_rows] for name, values in self.read(chunk).items()}

    def integer_range(self, name: str) -> tuple[int, int] | None:
        """Return the least and the greatest integer of a column if the files state them."""
        del name
        return None


def rows_per_chunk(num_bytes: int, num_rows: int) -> int:
    """Return the number of rows in a chunk of a source that can start to read at any row.

    Args:
        num_bytes: The size of all rows.
        num_rows: The number of all rows.
    """
    return int(np.clip(CHUNK_BYTES * num_rows // max(1, num_bytes), 1, _MAX_ROWS))


def group_parts(sizes: Iterable[int]) -> list[range]:
    """Group consecutive parts of a file, such as row groups, into chunks of at least `CHUNK_BYTES`.

    Args:
        sizes: The size of each part in bytes.
    """
    groups, first, num_bytes, end = [], 0, 0, 0
    for end, size in enumerate(sizes, start=1):
        num_bytes += size
        if num_bytes >= CHUNK_BYTES:
            groups.append(range(first, end))
            first, num_bytes = end, 0
    if first < end:
        groups.append(range(first, end))
    return groups


def import_library(name: str, source: str, extra: str) -> ModuleType:
    """Import a module of an optional library.

    Args:
        name: The name of the module.
        source: The source that requires it.
        extra: The extra of this package that installs it.

    Raises:
        ConfigValueError: The library is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        library = name.partition(".")[0]
        if (error.name or "").partition(".")[0] != library:
            raise
        raise errors.ConfigValueError(
            f"The source {source!r} requires {library}, which is not installed. Run "
            f"`pip install 'official-lite[{extra}]'`."
        ) from error


def require_known(name: str) -> None:
    """Check the name of a source.

    Raises:
        UnknownNameError: There is no such source.
    """
    if name not in SOURCES:
        hint = suggestions.did_you_mean(name, SOURCES)
        raise errors.UnknownNameError(f"There is no data source {name!r}. {hint}")


def open_source(name: str, paths: Sequence[str], columns: Sequence[str] = ()) -> Source:
    """Open files or directories as a source.

    Args:
        name: The name of the source, such as `parquet`.
        paths: The files; for `huggingface`, the directories. The same order on every host.
        columns: The columns to read; empty reads all columns.

    Raises:
        UnknownNameError: There is no such source.
        ConfigValueError: The library of the source is not installed, or a path is remote.
        FileNotFoundError: A file does not exist.
        DataError: A file can't be read, a column of `columns` is missing, the columns of the files
            differ, TensorFlow does not support the type of a column, or there are no rows.
    """
    require_known(name)
    if remote := [path for path in paths if files.is_remote(path)]:
        raise errors.ConfigValueError(
            f"The source {name!r} reads local files only; got {remote[0]!r}. Copy the files, or "
            "mount their file system."
        )
    source = _open(name, tuple(paths), tuple(columns), tuple(map(_stamp, paths)))
    if not len(source.chunk_rows):
        shown = f"{len(paths)} files, such as {paths[0]}" if len(paths) > 1 else f"`{paths[0]}`"
        raise errors.DataError(f"No rows found in {shown}. Set `input_path` to files with rows.")
    return source


# Cache the sources, because several input pipelines, and evaluations during training, open the same
# files.
@functools.lru_cache(maxsize=8)
def _open(
    name: str, paths: tuple[str, ...], columns: tuple[str, ...], stamps: tuple[_Stamp, ...]
) -> Source:
    del stamps
    formats = importlib.import_module("official_lite.data.sources.formats")
    create: Callable[[Sequence[str], Sequence[str]], Source] = getattr(formats, SOURCES[name])
    return create(paths, columns)


def _stamp(path: str) -> _Stamp:
    """Return what changes when a file, or a file in a directory, is rewritten."""
    # The times of a directory do not change when a file in it is rewritten.
    names = sorted(os.listdir(path)) if os.path.isdir(path) else [""]
    found = [(name, os.stat(os.path.join(path, name) if name else path)) for name in names]
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in found)
