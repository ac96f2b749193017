"""The interface of a source of rows, and the division of its rows into chunks."""

import abc
import importlib
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors

__all__ = ["CHUNK_BYTES", "Columns", "Source", "group_parts", "import_library", "rows_per_chunk"]

# The values of some rows by column, each with a leading axis of rows. Texts and bytes are arrays of
# `bytes` objects.
Columns = Mapping[str, npt.NDArray[np.generic]]

# A chunk has at least this size, so that the time of a call is small against that of reading.
CHUNK_BYTES = 1 << 22

# The largest chunk of tiny rows.
_MOST_ROWS = 1 << 16


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
    return int(np.clip(CHUNK_BYTES * num_rows // max(1, num_bytes), 1, _MOST_ROWS))


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


def import_library(name: str, *, source: str, extra: str) -> ModuleType:
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
            f"The source {source!r} requires {library}, which is not installed: "
            f"`pip install 'official-lite[{extra}]'`."
        ) from error
