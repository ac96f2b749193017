"""The files of predictions: JSON lines, Parquet, and TFRecord files of `tf.train.Example`s.

Equal rows become equal bytes, whatever process writes them and at whatever time. All formats hold
the same columns::

    | column         | JSON lines    | Parquet       | TFRecord             |
    | -------------- | ------------- | ------------- | -------------------- |
    | (rows,)        | number, text  | primitive     | list of one element  |
    | (rows, a, b)   | nested lists  | nested lists  | list of a × b values |
"""

import json
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, files

__all__ = [
    "EXTENSIONS",
    "Columns",
    "JsonLinesFile",
    "ParquetFile",
    "ShardFile",
    "TFRecordFile",
    "as_columns",
    "create",
    "library_versions",
    "require_library",
]

# One array per column, whose first axis are the rows. The elements are numbers, booleans or texts.
Columns = Mapping[str, npt.NDArray[Any]]

EXTENSIONS = {"jsonl": "jsonl", "parquet": "parquet", "tfrecord": "tfrecord"}

# A row group of a Parquet file ends when it has this many bytes. Readers decode one at a time.
_BYTES_PER_ROW_GROUP = 1 << 24


class ShardFile(Protocol):
    """A file to which rows are appended."""

    def write(self, columns: Columns) -> None:
        """Append rows, with the same columns in every call."""

    def close(self) -> None:
        """Complete and close the file."""


def require_library(file_format: str) -> None:
    """Check that the library that writes a format is installed.

    Raises:
        errors.ConfigValueError: If it is not.
    """
    if file_format == "parquet":
        _parquet()


def library_versions(file_format: str) -> dict[str, str]:
    """Return the versions of the libraries that determine the bytes of a file, beside TensorFlow.

    A Parquet file names its writer, with the version.
    """
    if file_format != "parquet":
        return {}
    import pyarrow

    return {"pyarrow": pyarrow.__version__}


def create(file_format: str, path: str) -> ShardFile:
    """Create an empty file of a format."""
    kinds: dict[str, Callable[[str], ShardFile]] = {
        "jsonl": JsonLinesFile,
        "parquet": ParquetFile,
        "tfrecord": TFRecordFile,
    }
    return kinds[file_format](path)


def as_columns(predictions: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Convert the arrays of predictions to columns that all formats can hold.

    16-bit floating-point numbers become float32, and bytes become text.

    Args:
        predictions: One array per name, with one row per example.

    Raises:
        errors.ConfigTypeError: If the elements of an array are of a type that has no column.
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


class JsonLinesFile:
    """A file with a JSON object per row.

    The numbers of a float32 column have the fewest digits that identify them. A number that is not
    finite becomes `null`, because JSON has no NaN and no infinity.

    Args:
        path: The path of the new file.
    """

    def __init__(self, path: str) -> None:
        self._opened = files.open_file(path, "wb")
        self._file = self._opened.__enter__()

    def write(self, columns: Columns) -> None:
        """Append rows."""
        names = list(columns)
        values = (_json_values(column) for column in columns.values())
        lines = (
            json.dumps(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)
        )
        self._file.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        """Close the file."""
        self._opened.__exit__(None, None, None)


def _json_values(column: npt.NDArray[Any]) -> list[Any]:
    if column.dtype.kind != "f":
        return list(column.tolist())
    is_finite = np.isfinite(column)
    if column.dtype == np.float32:
        # Through the text, or a float32 of 0.1 would become 0.10000000149011612.
        column = column.astype("U").astype(np.float64)
    if not is_finite.all():
        column = column.astype(object)
        column[~is_finite] = None
    return list(column.tolist())


class ParquetFile:
    """A Parquet file, in a version of the format that is fixed.

    Args:
        path: The path of the new file.
    """

    def __init__(self, path: str) -> None:
        self._parquet = _parquet()
        self._opened = files.open_file(path, "wb")
        self._file = self._opened.__enter__()
        self._writer: Any = None
        self._batches: list[Any] = []

    def write(self, columns: Columns) -> None:
        """Append rows. They are held in memory until they fill a row group."""
        import pyarrow

        arrays = [_arrow_array(column) for column in columns.values()]
        self._batches.append(pyarrow.RecordBatch.from_arrays(arrays, names=list(columns)))
        if sum(batch.nbytes for batch in self._batches) >= _BYTES_PER_ROW_GROUP:
            self._write_row_group()

    def close(self) -> None:
        """Write the last row group and the footer, and close the file."""
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
        self._batches = []
        if self._writer is None:
            # Numbers rarely repeat, so a dictionary of them only costs time.
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
    """Return a column as an array of Arrow, with a nested list for each axis after the rows."""
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
            "`prediction.format` is 'parquet', which requires pyarrow: pip install "
            "'official-lite[parquet]'. Or use 'jsonl' or 'tfrecord'."
        ) from error
    module: ModuleType = pyarrow.parquet
    return module


class TFRecordFile:
    """A TFRecord file with a `tf.train.Example` per row.

    As in every `tf.train.Example`, numbers are float32 or int64; booleans are 0 and 1.

    Args:
        path: The path of the new file.
    """

    def __init__(self, path: str) -> None:
        self._writer = tf.io.TFRecordWriter(path)

    def write(self, columns: Columns) -> None:
        """Append rows."""
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
            # The features are a map, whose order would otherwise be undefined.
            self._writer.write(example.SerializeToString(deterministic=True))

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def _without_bool(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return column.astype(np.int64) if column.dtype == np.bool_ else column


def _kind(column: npt.NDArray[Any]) -> str:
    """Return the field of `tf.train.Feature` that holds the elements of a column."""
    if column.dtype == object:
        return "bytes_list"
    return "float_list" if column.dtype.kind == "f" else "int64_list"
