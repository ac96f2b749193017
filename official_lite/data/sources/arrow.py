"""Rows that are Arrow tables: Arrow IPC files, Parquet files, and datasets of Hugging Face.

`ColumnReader` converts the columns of a table to NumPy arrays, a whole column at a time. Numbers
without nulls are not copied. Structs become one column per field, named `column.field`.
"""

import abc
import concurrent.futures
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, suggestions
from official_lite.data.sources import source

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["ArrowSource", "ColumnReader", "HuggingFaceSource", "ParquetSource", "flatten"]

# The first bytes of an Arrow file with an index; a stream has none.
_MAGIC = b"ARROW1"

_FOOTERS_READ_AT_ONCE = 16


def flatten(table: "pa.Table") -> "pa.Table":
    """Replace each struct column by its fields, named `column.field`, at all depths."""
    import pyarrow as pa

    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


class ColumnReader:
    """Selects columns of Arrow tables of one schema and converts them to NumPy arrays.

    Args:
        schema: The schema of the tables.
        columns: The names of the columns to read; the name of a struct selects all its fields.
            Empty selects all columns.
        file: The file of the schema, for error messages.

    Attributes:
        read_names: The top-level columns that a table must have.

    Raises:
        DataError: A column is missing, or its type has no counterpart in TensorFlow.
    """

    def __init__(self, schema: "pa.Schema", columns: Sequence[str], file: str) -> None:
        flat = flatten(schema.empty_table()).schema
        self._file = file
        self._names = _select(flat.names, columns, file)
        top = {name: _top_level(name, schema.names) for name in self._names}
        self.read_names = list(dict.fromkeys(top.values()))
        self._fields = [schema.field(name) for name in self.read_names]
        self._types = {name: flat.field(name).type for name in self._names}
        for name, type_ in self._types.items():
            _require_supported(name, type_, file)

    def require_same(self, schema: "pa.Schema", file: str) -> None:
        """Check that another file has the same columns.

        Raises:
            DataError: A column is missing or has another type.
        """
        for field in self._fields:
            index = schema.get_field_index(field.name)
            if index < 0:
                hint = suggestions.did_you_mean(field.name, schema.names)
                raise errors.DataError(
                    f"`{file}` has no column {field.name!r}, unlike `{self._file}`. {hint}".rstrip()
                )
            if schema.field(index).type != field.type:
                raise errors.DataError(
                    f"The column {field.name!r} is {schema.field(index).type} in `{file}`, but "
                    f"{field.type} in `{self._file}`."
                )

    def infer_specs(self, table: "pa.Table") -> dict[str, tf.TensorSpec]:
        """Return the dtype and shape of one value of each column.

        Args:
            table: Some rows, whose lists have the length that all lists of the column must have.
        """
        flat = flatten(table)
        return {name: self._infer_spec(name, flat.column(name)) for name in self._names}

    def to_numpy(self, table: "pa.Table", specs: Mapping[str, tf.TensorSpec]) -> source.Columns:
        """Convert the selected columns.

        Raises:
            DataError: A column has nulls that its dtype can't represent, or a list of another
                length than its spec.
        """
        flat = flatten(table)
        return {
            name: self._values(name, _one_array(flat.column(name)), spec)
            for name, spec in specs.items()
        }

    def _infer_spec(self, name: str, column: "pa.ChunkedArray") -> tf.TensorSpec:
        array, shape = _storage(_one_array(column)), []
        while _is_list(array.type):
            lengths = array.drop_null().value_lengths()
            shape.append(lengths[0].as_py() if len(lengths) else 0)
            array = _storage(array.flatten())
        return tf.TensorSpec(shape, _tf_dtype(array.type))

    def _values(self, name: str, array: "pa.Array", spec: tf.TensorSpec) -> npt.NDArray[np.generic]:
        num_rows, array = len(array), _storage(array)
        for length in spec.shape:
            self._require_no_nulls(name, array, "lists")
            self._require_length(name, array, length)
            array = _storage(array.flatten())
        if not spec.dtype.is_floating:
            self._require_no_nulls(name, array, spec.dtype.name)
        return _leaf_values(array, spec.dtype).reshape(num_rows, *spec.shape)

    def _require_no_nulls(self, name: str, array: "pa.Array", kind: str) -> None:
        if array.null_count:
            raise errors.DataError(
                f"The column {name!r} of `{self._file}` or a file beside it has "
                f"{array.null_count} nulls in {len(array):,} values, which a tensor of {kind} "
                "can't represent. Fill or drop them when the file is written, or leave the column "
                "out of `columns`."
            )

    def _require_length(self, name: str, array: "pa.Array", length: int) -> None:
        import pyarrow.compute as pc

        if not len(array) or (hasattr(array.type, "list_size") and array.type.list_size == length):
            return
        found = pc.min_max(array.value_lengths()).as_py()
        if (found["min"], found["max"]) != (length, length):
            raise errors.DataError(
                f"The column {name!r} of `{self._file}` or a file beside it has lists of "
                f"{found['min']} to {found['max']} values; expected {length}, as in the first row. "
                "Pad the lists to one length when the file is written, or leave the column out of "
                "`columns`."
            )


def _select(names: Sequence[str], columns: Sequence[str], file: str) -> list[str]:
    if not columns:
        return list(names)
    selected: dict[str, None] = {}
    for column in columns:
        found = [name for name in names if name == column or name.startswith(f"{column}.")]
        if not found:
            hint = suggestions.did_you_mean(column, names)
            raise errors.DataError(f"`{file}` has no column {column!r}. {hint}".rstrip())
        selected.update(dict.fromkeys(found))
    return list(selected)


def _top_level(name: str, names: Sequence[str]) -> str:
    return max((n for n in names if name == n or name.startswith(f"{n}.")), key=len)


def _one_array(column: "pa.ChunkedArray") -> "pa.Array":
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _storage(array: "pa.Array") -> "pa.Array":
    """Return the plain values of an extension array or of a dictionary."""
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        return _storage(array.storage)
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _is_list(type_: "pa.DataType") -> bool:
    import pyarrow as pa

    types = pa.types
    return types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)


def _is_bytes(type_: "pa.DataType") -> bool:
    import pyarrow as pa

    types = pa.types
    checks = (
        types.is_string,
        types.is_large_string,
        types.is_string_view,
        types.is_binary,
        types.is_large_binary,
        types.is_binary_view,
        types.is_fixed_size_binary,
    )
    return any(check(type_) for check in checks)


def _leaf_type(type_: "pa.DataType") -> "pa.DataType":
    import pyarrow as pa

    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif isinstance(type_, pa.DictionaryType) or _is_list(type_):
            type_ = type_.value_type
        else:
            return type_


def _require_supported(name: str, type_: "pa.DataType", file: str) -> None:
    import pyarrow as pa

    leaf, types = _leaf_type(type_), pa.types
    is_number = types.is_integer(leaf) or types.is_floating(leaf) or types.is_boolean(leaf)
    if not (is_number or _is_bytes(leaf) or types.is_temporal(leaf)) or types.is_interval(leaf):
        raise errors.DataError(
            f"The column {name!r} of `{file}` is {type_}, which has no counterpart in TensorFlow. "
            "Convert it to numbers or texts when the file is written, or leave it out of "
            "`columns`."
        )


def _tf_dtype(type_: "pa.DataType") -> tf.DType:
    import pyarrow as pa

    if _is_bytes(type_):
        return tf.string
    if pa.types.is_temporal(type_):
        return tf.int64 if type_.bit_width == 64 else tf.int32
    return tf.as_dtype(type_.to_pandas_dtype())


def _leaf_values(array: "pa.Array", dtype: tf.DType) -> npt.NDArray[np.generic]:
    import pyarrow as pa

    if dtype == tf.string:
        # Arrow makes `str` objects of texts, which takes longer than `bytes`.
        return array.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int64() if dtype == tf.int64 else pa.int32())
    values = array.to_numpy(zero_copy_only=False)
    # Nulls of a floating column have become NaN, which Arrow may have widened.
    return values.astype(dtype.as_numpy_dtype, copy=False)


class _TableSource(source.Source):
    """Files or directories whose chunks are Arrow tables with the same columns.

    Args:
        paths: The files or directories.
        columns: The columns to read; empty reads all columns.

    Raises:
        ConfigValueError: The library of the source is not installed.
        DataError: A file can't be read, or its columns are not as requested.
    """

    _reader: ColumnReader

    def read(self, chunk: int) -> source.Columns:
        return self._reader.to_numpy(self._table(chunk), self.specs)

    def sample(self, chunk: int, num_rows: int) -> source.Columns:
        return self._reader.to_numpy(self._table(chunk, num_rows), self.specs)

    @abc.abstractmethod
    def _table(self, chunk: int, num_rows: int | None = None) -> "pa.Table":
        """Return the columns of the rows of a chunk, or of its first rows."""


class ArrowSource(_TableSource):
    """Arrow files, streams or files with an index, with the same columns.

    Compressed files are decompressed once more when the source is opened, to count their rows. The
    rows of a compressed stream stay in memory.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        source.import_library("pyarrow", source="arrow", extra="parquet")
        self.files = list(paths)
        self._opened = [_Batches(path) for path in self.files]
        schema = self._opened[0].schema
        self._reader = ColumnReader(schema, columns, self.files[0])
        self._chunks: list[tuple[_Batches, range]] = []
        rows = []
        for file, batches in zip(self.files, self._opened, strict=True):
            self._reader.require_same(batches.schema, file)
            for chunk in source.group_parts(num_bytes for _, num_bytes in batches.sizes):
                if num_rows := sum(batches.sizes[index][0] for index in chunk):
                    self._chunks.append((batches, chunk))
                    rows.append(num_rows)
        self.chunk_rows = np.array(rows, np.int64)
        self.specs = self._reader.infer_specs(self._table(0, 1)) if rows else {}

    def _table(self, chunk: int, num_rows: int | None = None) -> "pa.Table":
        batches, numbers = self._chunks[chunk]
        return batches.read(numbers).select(self._reader.read_names).slice(0, num_rows)


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


class ParquetSource(_TableSource):
    """Parquet files with the same columns.

    The footer of each file is read once, when the source is opened. It holds the number of rows and
    the ranges of integers.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        source.import_library("pyarrow", source="parquet", extra="parquet")
        self.files = list(paths)
        with concurrent.futures.ThreadPoolExecutor(_FOOTERS_READ_AT_ONCE) as pool:
            self._footers = list(pool.map(_read_footer, self.files))
        schema = self._footers[0].schema.to_arrow_schema()
        self._reader = ColumnReader(schema, columns, self.files[0])
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
        self.specs = self._reader.infer_specs(self._table(0, 1)) if rows else {}

    def integer_range(self, name: str) -> tuple[int, int] | None:
        ranges = [self._range_in_file(footer, name) for footer in self._footers]
        known = [one for one in ranges if one is not None]
        if len(known) < len(ranges) or not known:
            return None
        return min(least for least, _ in known), max(greatest for _, greatest in known)

    def _table(self, chunk: int, num_rows: int | None = None) -> "pa.Table":
        import pyarrow as pa

        file, groups = self._chunks[chunk]
        columns = self._reader.read_names
        with self._open(file) as opened:
            if num_rows is None:
                return opened.read_row_groups(list(groups), columns=columns)
            batches = opened.iter_batches(
                num_rows, list(groups), columns=columns, use_threads=False
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


class HuggingFaceSource(_TableSource):
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
        self._reader = ColumnReader(schema, columns, self.files[0])
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
