"""The sources by the names that `DataConfig.source` accepts."""

import functools
import importlib
import os
from collections.abc import Callable, Mapping, Sequence

from official_lite.common import errors, files, suggestions
from official_lite.data.sources.source import Source

__all__ = ["OF_DIRECTORIES", "SOURCES", "open_source", "require_known"]

# The module and class of each source. A module imports the library of its source when it opens one.
SOURCES: Mapping[str, tuple[str, str]] = {
    "parquet": ("official_lite.data.sources.arrow", "ParquetSource"),
    "arrow": ("official_lite.data.sources.arrow", "ArrowSource"),
    "csv": ("official_lite.data.sources.csv", "CsvSource"),
    "huggingface": ("official_lite.data.sources.arrow", "HuggingFaceSource"),
    "array_record": ("official_lite.data.sources.array_record", "ArrayRecordSource"),
}

# Sources whose paths are directories.
OF_DIRECTORIES = frozenset({"huggingface"})


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
        DataError: A file can't be read, has other columns than the first file, lacks a column of
            `columns`, has a column without a counterpart in TensorFlow, or there are no rows.
    """
    require_known(name)
    if remote := [path for path in paths if files.is_remote(path)]:
        raise errors.ConfigValueError(
            f"The source {name!r} reads local files only; got {remote[0]!r}. Copy the files, or "
            "mount their file system."
        )
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        raise errors.DataError(f"The input file `{missing[0]}` does not exist.")
    source = _open(name, tuple(paths), tuple(columns), tuple(map(_stamp, paths)))
    if not len(source.chunk_rows):
        shown = f"{len(paths)} files, such as {paths[0]}" if len(paths) > 1 else f"`{paths[0]}`"
        raise errors.DataError(f"No rows found in {shown}.")
    return source


# Several input pipelines, and an evaluation beside the training, read the same files.
@functools.lru_cache(maxsize=8)
def _open(
    name: str, paths: tuple[str, ...], columns: tuple[str, ...], stamps: tuple[tuple[int, int], ...]
) -> Source:
    del stamps
    module, cls = SOURCES[name]
    create: Callable[[Sequence[str], Sequence[str]], Source]
    create = getattr(importlib.import_module(module), cls)
    return create(paths, columns)


def _stamp(path: str) -> tuple[int, int]:
    """Return what changes when a file is written again."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
