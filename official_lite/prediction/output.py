"""The directory of predictions: numbered shards, and the progress from which a run resumes.

::

    predictions/
      predictions-00000.parquet     rows 0 to 9999
      predictions-00001.parquet     rows 10000 to 19999
      _progress.json                how many shards are complete, and what made them

A shard is written under a temporary name and then renamed, so a file with its own name is complete.
`_progress.json` is then updated to include it. A killed run resumes after the last shard in
`_progress.json` and removes later shards. Readers of Parquet directories ignore names that begin
with an underscore.

The files are JSON lines, Parquet, or TFRecord files of `tf.train.Example`s. Equal rows become equal
bytes, regardless of the process and the time. All formats contain the same columns::

    | column         | JSON lines    | Parquet       | TFRecord             |
    | -------------- | ------------- | ------------- | -------------------- |
    | (rows,)        | number, text  | primitive     | list of one element  |
    | (rows, a, b)   | nested lists  | nested lists  | list of a × b values |
"""

import abc
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, files

__all__ = [
    "INDEX",
    "PROGRESS",
    "JsonLinesFile",
    "ParquetFile",
    "PredictionOutput",
    "Progress",
    "ShardFile",
    "TFRecordFile",
    "as_columns",
    "create_shard",
    "library_versions",
    "read_progress",
    "require_library",
]

PROGRESS = "_progress.json"

# The name of the column with the row number, which every file contains.
INDEX = "index"

_SHARD = re.compile(r"predictions-(\d{5,})\.(\w+)")

# The maximum number of batches that wait to be encoded. More batches would only use memory.
_MAX_WAITING = 4

# One array per column, with the rows along the first axis. The elements are numbers, booleans or
# text.
Columns = Mapping[str, npt.NDArray[Any]]

# The target size of a Parquet row group in bytes. Readers decode one row group at a time.
_BYTES_PER_ROW_GROUP = 1 << 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress in a directory of predictions.

    Attributes:
        shards: The number of complete shards.
        rows: The number of rows in the complete shards.
        next_batch: The number of the global batch that contains the next row.
        next_row: The number of rows of that batch that are already in a complete shard.
        is_complete: Whether the complete shards contain all rows of the input.
        made_from: Everything that determines the predictions: the fields of the config, the
            weights, the input files, the number of replicas and the versions of the libraries.
    """

    shards: int = 0
    rows: int = 0
    next_batch: int = 0
    next_row: int = 0
    is_complete: bool = False
    made_from: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = (self.shards, self.rows, self.next_batch, self.next_row)
        is_valid = all(isinstance(count, int) and count >= 0 for count in counts)
        if not (is_valid and isinstance(self.made_from, dict)):
            raise ValueError("a field has the wrong type or is out of range")


def read_progress(directory: str) -> Progress | None:
    """Return the progress in a directory of predictions; None if there is none.

    Raises:
        errors.DataError: If the progress file is damaged.
    """
    path = os.path.join(directory, PROGRESS)
    if not files.exists(path):
        return None
    try:
        return Progress(**files.read_json(path))
    except (TypeError, ValueError) as error:
        raise errors.DataError(
            f"{path} is damaged: {error}. Remove {directory} to predict again."
        ) from error


class PredictionOutput(contextlib.AbstractContextManager["PredictionOutput"]):
    """Writer of predictions that resumes where an earlier process was killed.

    ::

        with PredictionOutput(directory, "parquet", rows_per_shard=10_000, made_from=...) as output:
            for predictions in batches_from(output.next_batch):
                output.write(*predictions)
            output.finish()

    Shards are encoded and written by a thread, so that the next batches are computed meanwhile.
    After an error, or without `finish`, the unfinished shard is removed, but no complete shard.

    Args:
        directory: The directory, which is created if it is missing. Only one process may use it at
            a time.
        file_format: One of `prediction.configs.FORMATS`.
        rows_per_shard: The number of rows in each file but the last one.
        made_from: A flat JSON-serializable description of everything that determines the
            predictions.

    Raises:
        errors.ConfigValueError: If the directory contains predictions with another `made_from`, or
            files other than predictions.
        errors.DataError: If the progress in the directory is damaged, or a shard is missing.
    """

    def __init__(
        self, directory: str, file_format: str, *, rows_per_shard: int, made_from: Mapping[str, Any]
    ) -> None:
        self._directory = directory
        self._format = file_format
        self._rows_per_shard = rows_per_shard
        wanted = dict(json.loads(json.dumps(dict(made_from), default=str)))
        found = read_progress(directory)
        if found is None:
            _require_unused(directory)
            files.makedirs(directory)
            self._progress = Progress(made_from=wanted)
            self._write_progress()
        else:
            _require_same(found.made_from, wanted, directory)
            self._progress = found
        self._first_rows = self._progress.rows
        self._remove_unfinished()
        self._batch, self._skipped = self._progress.next_batch, self._progress.next_row
        self._rows = self._progress.rows
        self._shard: ShardFile | None = None
        self._temporary = ""
        self._rows_in_shard = 0
        self._has_failed = False
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="predictions")
        self._waiting: collections.deque[concurrent.futures.Future[None]] = collections.deque()

    @property
    def progress(self) -> Progress:
        """The progress so far. The writing thread may be about to complete more shards."""
        return self._progress

    @property
    def next_batch(self) -> int:
        """The number of the first global batch to write; read it before calling `write`."""
        return self._batch

    @property
    def new_rows(self) -> int:
        """The number of rows that this process has completed."""
        return self._progress.rows - self._first_rows

    def write(self, *parts: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append the predictions of the next batch.

        Args:
            *parts: One array per column, all with the same number of rows. A batch whose rows
                differ in shape consists of several parts.

        Raises:
            Exception: The error that occurred when an earlier batch was written.
        """
        while len(self._waiting) >= _MAX_WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(self._append, parts))

    def finish(self) -> Progress:
        """Complete the last shard and mark the predictions as complete.

        Raises:
            errors.DataError: If there were no rows.
        """
        while self._waiting:
            self._waiting.popleft().result()
        if self._rows == 0:
            raise errors.DataError("The data to predict are empty; expected at least one example.")
        self._pool.submit(self._complete).result()
        return self._progress

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Write the waiting batches first, because they may complete a shard.
        self._pool.shutdown()
        if self._shard is not None:
            # Suppress errors while closing, because they would hide the error that ended the run.
            with contextlib.suppress(Exception):
                self._shard.close()
            with contextlib.suppress(OSError):
                files.remove(self._temporary)

    def _append(self, parts: Sequence[Mapping[str, npt.NDArray[Any]]]) -> None:
        """Append the rows of a batch that are not in a shard yet, and complete full shards."""
        if self._has_failed:
            return
        # If writing this batch fails, the flag stays true, so that no later batch is written.
        self._has_failed = True
        batch = [as_columns(part) for part in parts]
        sizes = [len(next(iter(columns.values()))) for columns in batch]
        skipped, self._skipped = self._skipped, 0
        first = 0  # The number of rows of the batch that precede the part.
        for columns, num_rows in zip(batch, sizes, strict=True):
            row = max(0, skipped - first)
            while row < num_rows:
                end = min(num_rows, row + self._rows_per_shard - self._rows_in_shard)
                index = np.arange(self._rows, self._rows + end - row, dtype=np.int64)
                rows = {name: column[row:end] for name, column in columns.items()}
                self._open_shard().write({INDEX: index, **rows})
                self._rows += end - row
                self._rows_in_shard += end - row
                row = end
                if self._rows_in_shard == self._rows_per_shard:
                    is_all = first + row == sum(sizes)
                    self._close_shard(self._batch + is_all, 0 if is_all else first + row)
            first += num_rows
        self._batch += 1
        self._has_failed = False

    def _complete(self) -> None:
        if self._shard is not None:
            self._close_shard(self._batch, 0, is_complete=True)
        else:
            self._progress = dataclasses.replace(self._progress, is_complete=True)
            self._write_progress()

    def _open_shard(self) -> "ShardFile":
        if self._shard is None:
            self._temporary = f"{self._path(self._progress.shards)}.{uuid.uuid4().hex}.tmp"
            self._shard = create_shard(self._format, self._temporary)
        return self._shard

    def _close_shard(self, next_batch: int, next_row: int, *, is_complete: bool = False) -> None:
        """Complete the current shard, and then record it in the progress."""
        shard = self._open_shard()
        shard.close()
        files.sync(self._temporary)
        files.rename(self._temporary, self._path(self._progress.shards))
        self._shard, self._rows_in_shard = None, 0
        self._progress = dataclasses.replace(
            self._progress,
            shards=self._progress.shards + 1,
            rows=self._rows,
            next_batch=next_batch,
            next_row=next_row,
            is_complete=is_complete,
        )
        self._write_progress()

    def _write_progress(self) -> None:
        text = json.dumps(dataclasses.asdict(self._progress), indent=2)
        files.write_text(os.path.join(self._directory, PROGRESS), text + "\n")

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"predictions-{number:05d}.{self._format}")

    def _remove_unfinished(self) -> None:
        """Remove shards that are not in the progress file, and check that all others exist."""
        files.remove_temporaries(self._directory, lambda name: not name.startswith(".lock"))
        names = files.list_names(self._directory)
        for name in names:
            matched = _SHARD.fullmatch(name)
            if matched and int(matched.group(1)) >= self._progress.shards:
                files.remove(os.path.join(self._directory, name))
        for number in range(self._progress.shards):
            if os.path.basename(self._path(number)) not in names:
                raise errors.DataError(
                    f"{self._path(number)} is missing, although {PROGRESS} lists it as complete. "
                    f"Remove {self._directory} to predict again."
                )


def _require_unused(directory: str) -> None:
    """Check that a directory without progress is empty; its files might belong to the user."""
    others = [name for name in files.list_names(directory) if not _is_own(name)]
    if others:
        raise errors.ConfigValueError(
            f"The directory {directory} contains {', '.join(others[:3])}"
            f"{' …' if others[3:] else ''}, but no predictions. Set `prediction.output_dir` to a "
            "new directory."
        )


def _is_own(name: str) -> bool:
    return name.startswith((".lock", PROGRESS))


def _require_same(before: Mapping[str, Any], now: Mapping[str, Any], directory: str) -> None:
    changes = [
        f"  {name}: {before.get(name, '(none)')} -> {now.get(name, '(none)')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    if changes:
        raise errors.ConfigValueError(
            f"The predictions in {directory} do not match this run:\n"
            + "\n".join(changes)
            + "\nUse another `prediction.output_dir`, or remove the directory to predict again."
        )


class ShardFile(abc.ABC):
    """A file to which rows are appended."""

    @abc.abstractmethod
    def write(self, columns: Columns) -> None:
        """Append rows, with the same columns in every call."""

    @abc.abstractmethod
    def close(self) -> None:
        """Complete and close the file."""


def require_library(file_format: str) -> None:
    """Check that the library that writes a format is installed.

    Raises:
        errors.ConfigValueError: If the library is not installed.
    """
    if file_format == "parquet":
        _parquet()


def library_versions(file_format: str) -> dict[str, str]:
    """Return the versions of the libraries, except TensorFlow, that determine the bytes of a file.

    A Parquet file contains the name and the version of the library that wrote it.
    """
    if file_format != "parquet":
        return {}
    import pyarrow

    return {"pyarrow": pyarrow.__version__}


def as_columns(predictions: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Convert the arrays of predictions to columns that all formats can represent.

    16-bit floating-point numbers become float32, and bytes become text.

    Args:
        predictions: One array per name, with one row per example.

    Raises:
        errors.ConfigTypeError: If the formats can't represent the elements of an array.
        errors.DataError: If bytes are not UTF-8 text.
    """
    return {name: _as_column(name, np.asarray(array)) for name, array in predictions.items()}


def _as_column(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind in "biu" or array.dtype in (np.float32, np.float64):
        return array
    if array.dtype == np.float16 or array.dtype == tf.bfloat16.as_numpy_dtype:
        return array.astype(np.float32)
    if array.dtype.kind in "OSU":
        texts = [_as_text(name, value) for value in array.reshape(-1)]
        column = np.empty(len(texts), object)
        column[:] = texts
        return column.reshape(array.shape)
    raise errors.ConfigTypeError(
        f"The predictions {name!r} have the dtype {array.dtype}; expected numbers, booleans or "
        "strings. Cast them in `build_predictions`."
    )


def _as_text(name: str, value: object) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise errors.DataError(
            f"The predictions {name!r} contain bytes that are not UTF-8 text: {value!r:.60}. Apply "
            "`tf.io.encode_base64` to them in `build_predictions`."
        ) from error


class JsonLinesFile(ShardFile):
    """A file with a JSON object per row.

    A float32 number is written with the fewest digits that identify it. A non-finite number becomes
    `null`, because JSON has neither NaN nor infinity.

    Args:
        path: The path of the new file.
    """

    def __init__(self, path: str) -> None:
        self._opened = files.open_file(path, "wb")
        self._file = self._opened.__enter__()

    def write(self, columns: Columns) -> None:
        names = list(columns)
        values = (_json_values(column) for column in columns.values())
        lines = (
            json.dumps(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)
        )
        self._file.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        self._opened.__exit__(None, None, None)


def _json_values(column: npt.NDArray[Any]) -> list[Any]:
    if column.dtype.kind != "f":
        return list(column.tolist())
    is_finite = np.isfinite(column)
    if column.dtype == np.float32:
        # Convert via text; otherwise the float32 value 0.1 would become 0.10000000149011612.
        column = column.astype("U").astype(np.float64)
    if not is_finite.all():
        column = column.astype(object)
        column[~is_finite] = None
    return list(column.tolist())


class ParquetFile(ShardFile):
    """A Parquet file, in a fixed version of the format.

    Args:
        path: The path of the new file.
    """

    def __init__(self, path: str) -> None:
        self._parquet = _parquet()
        self._opened = files.open_file(path, "wb")
        self._file = self._opened.__enter__()
        self._writer: Any = None
        self._batches: list[Any] = []
        self._num_bytes = 0

    def write(self, columns: Columns) -> None:
        # Hold rows in memory until they fill a row group.
        import pyarrow

        arrays = [_arrow_array(column) for column in columns.values()]
        batch = pyarrow.RecordBatch.from_arrays(arrays, names=list(columns))
        self._batches.append(batch)
        self._num_bytes += batch.nbytes
        if self._num_bytes >= _BYTES_PER_ROW_GROUP:
            self._write_row_group()

    def close(self) -> None:
        try:
            if self._batches:
                self._write_row_group()
            if self._writer is not None:
                self._writer.close()
        finally:
            self._opened.__exit__(None, None, None)

    def _write_row_group(self) -> None:
        import pyarrow

        table = pyarrow.Table.from_batches(self._batches).combine_chunks()
        self._batches, self._num_bytes = [], 0
        if self._writer is None:
            # Use dictionary encoding only for text, because numbers rarely repeat.
            texts = [field.name for field in table.schema if pyarrow.types.is_string(field.type)]
            self._writer = self._parquet.ParquetWriter(
                self._file,
                table.schema,
                version="2.6",
                data_page_version="1.0",
                compression="snappy",
                use_dictionary=texts,
                write_statistics=True,
            )
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))


def _arrow_array(column: npt.NDArray[Any]) -> Any:
    """Convert a column to an Arrow array, with nested lists for the axes after the first."""
    import pyarrow

    text = pyarrow.string() if column.dtype == object else None
    values = pyarrow.array(column.reshape(-1), type=text)
    for axis in range(column.ndim - 1, 0, -1):
        count = int(np.prod(column.shape[:axis], dtype=np.int64))
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(column.shape[axis])
        values = pyarrow.ListArray.from_arrays(pyarrow.array(offsets), values)
    return values


def _parquet() -> ModuleType:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise errors.ConfigValueError(
            "`prediction.format` is 'parquet', which requires pyarrow. Install it with `pip "
            "install 'official-lite[parquet]'`, or use 'jsonl' or 'tfrecord'."
        ) from error
    module: ModuleType = pyarrow.parquet
    return module


class TFRecordFile(ShardFile):
    """A TFRecord file with a `tf.train.Example` per row.

    As in any `tf.train.Example`, numbers are float32 or int64. Booleans become 0 and 1.

    Args:
        path: The path of the new file.
    """

    def __init__(self, path: str) -> None:
        self._writer = tf.io.TFRecordWriter(path)

    def write(self, columns: Columns) -> None:
        num_rows = len(next(iter(columns.values()), ()))
        lists = {
            name: (_kind(column), _without_bool(column).reshape(num_rows, -1).tolist())
            for name, column in columns.items()
        }
        for row in range(num_rows):
            example = tf.train.Example()
            for name, (kind, values) in lists.items():
                row_values = values[row]
                if kind == "bytes_list":
                    row_values = [value.encode() for value in row_values]
                getattr(example.features.feature[name], kind).value.extend(row_values)
            # Set `deterministic`, because the features are a map, whose order is otherwise
            # undefined.
            self._writer.write(example.SerializeToString(deterministic=True))

    def close(self) -> None:
        self._writer.close()


def _without_bool(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return column.astype(np.int64) if column.dtype == np.bool_ else column


def _kind(column: npt.NDArray[Any]) -> str:
    """Return the field of `tf.train.Feature` that holds the elements of a column."""
    if column.dtype == object:
        return "bytes_list"
    return "float_list" if column.dtype.kind == "f" else "int64_list"


_FORMATS: Mapping[str, Callable[[str], ShardFile]] = {
    "jsonl": JsonLinesFile,
    "parquet": ParquetFile,
    "tfrecord": TFRecordFile,
}


def create_shard(file_format: str, path: str) -> ShardFile:
    """Create an empty file of a format."""
    return _FORMATS[file_format](path)
