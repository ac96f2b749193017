"""Files of rows: Parquet, Arrow, Hugging Face datasets, CSV and ArrayRecord.

All but ArrayRecord are read as Arrow tables. `ColumnReader` converts the columns of a table to
NumPy arrays, a whole column at a time. Numbers without nulls are not copied. Structs become one
column per field, named `column.field`.
"""

import abc
import concurrent.futures
import csv
import functools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, suggestions
from official_lite.data.sources import registry

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from array_record.python import array_record_module

__all__ = [
    "ArrayRecordSource",
    "ArrowSource",
    "ColumnReader",
    "CsvSource",
    "HuggingFaceSource",
    "ParquetSource",
    "flatten",
]

# The first bytes of the Arrow file format. Unlike an Arrow stream, an Arrow file has an index.
_MAGIC = b"ARROW1"

_FILES_OPENED_AT_ONCE = 16

_LINE_BREAK, _QUOTE, _RETURN = b"\n"[0], b'"'[0], b"\r"[0]

_CSV_BLOCK_BYTES = 1 << 20
_LONG_LINE_BYTES = 1 << 14

_FILES_COUNTED_AT_ONCE = os.cpu_count() or 1

# The name of the only column of ArrayRecord files, which contains the serialized records.
_RECORD = "record"

# Reader options for random access: without read-ahead, a reader can start at any record.
_RECORD_OPTIONS = "readahead_buffer_size:0"


def flatten(table: "pa.Table") -> "pa.Table":
    """Replace each struct column by its fields, named `column.field`, at all depths."""
    import pyarrow as pa

    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


class ColumnReader:
    """A converter of selected columns of Arrow tables with one schema to NumPy arrays.

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
                    f"{field.type} in `{self._file}`. Write all files with the same type."
                )

    def infer_specs(self, table: "pa.Table") -> dict[str, tf.TensorSpec]:
        """Return the dtype and shape of one value of each column.

        Args:
            table: Some rows, whose lists have the length that all lists of the column must have.
        """
        flat = flatten(table)
        return {name: self._infer_spec(name, flat.column(name)) for name in self._names}

    def to_numpy(self, table: "pa.Table", specs: Mapping[str, tf.TensorSpec]) -> registry.Columns:
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
                f"The column {name!r} of `{self._file}` or of another input file has "
                f"{array.null_count} nulls in {len(array):,} values, which a tensor of {kind} "
                "can't represent. Fill or drop the nulls when you write the file, or leave the "
                "column out of `columns`."
            )

    def _require_length(self, name: str, array: "pa.Array", length: int) -> None:
        import pyarrow.compute as pc

        if not len(array) or (hasattr(array.type, "list_size") and array.type.list_size == length):
            return
        found = pc.min_max(array.value_lengths()).as_py()
        if (found["min"], found["max"]) != (length, length):
            raise errors.DataError(
                f"The column {name!r} of `{self._file}` or of another input file has lists of "
                f"{found['min']} to {found['max']} values; expected {length}, as in the first row. "
                "Pad the lists to one length when you write the file, or leave the column out of "
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
    """Return an array without its extension type and dictionary encoding, if any."""
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
            "Convert it to numbers or strings when you write the file, or leave it out of "
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
        # Convert strings to `bytes` objects, which is faster than Arrow's conversion to `str`
        # objects.
        return array.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int64() if dtype == tf.int64 else pa.int32())
    values = array.to_numpy(zero_copy_only=False)
    # Arrow has converted nulls in a column of floats to NaN, and may have widened the dtype.
    return values.astype(dtype.as_numpy_dtype, copy=False)


class _File(abc.ABC):
    """A file or directory whose rows can be read in chunks, as Arrow tables.

    Several threads may read it at the same time.
    """

    schema: "pa.Schema"

    @abc.abstractmethod
    def chunks(self) -> Iterator[tuple[Any, int]]:
        """Yield the identifier of each chunk, as accepted by `read`, and its number of rows."""

    @abc.abstractmethod
    def read(self, chunk: Any, columns: list[str], num_rows: int | None) -> "pa.Table":
        """Return columns of the first `num_rows` rows of a chunk; None means all rows."""


class _TableSource(registry.Source):
    """Files or directories whose chunks are Arrow tables with the same columns.

    Args:
        paths: The files or directories.
        columns: The columns to read; empty reads all columns.

    Raises:
        ConfigValueError: The library that the source requires is not installed.
        DataError: A file can't be read, a requested column is missing, the columns of the files
            differ, or TensorFlow does not support the type of a column.
    """

    # The arguments of `registry.import_library`: the module, the source and the extra.
    _library: ClassVar[tuple[str, str, str]]
    # The `_File` subclass that opens each path of the source.
    _file_cls: ClassVar[type[Any]]

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        registry.import_library(*self._library)
        self.files = list(paths)
        with concurrent.futures.ThreadPoolExecutor(_FILES_OPENED_AT_ONCE) as pool:
            opened = list(pool.map(self._file_cls, self.files))
        self._reader = ColumnReader(opened[0].schema, columns, self.files[0])
        self._chunks: list[tuple[Any, Any]] = []
        rows = []
        for path, file in zip(self.files, opened, strict=True):
            self._reader.require_same(file.schema, path)
            for chunk, num_rows in file.chunks():
                if num_rows:
                    self._chunks.append((file, chunk))
                    rows.append(num_rows)
        self.chunk_rows = np.array(rows, np.int64)
        self.specs = self._reader.infer_specs(self._table(0, 1)) if rows else {}

    def read(self, chunk: int) -> registry.Columns:
        return self._reader.to_numpy(self._table(chunk), self.specs)

    def sample(self, chunk: int, num_rows: int) -> registry.Columns:
        return self._reader.to_numpy(self._table(chunk, num_rows), self.specs)

    def _table(self, chunk: int, num_rows: int | None = None) -> "pa.Table":
        """Return the selected columns of a chunk; only its first rows if `num_rows` is set."""
        file, part = self._chunks[chunk]
        return file.read(part, self._reader.read_names, num_rows)


class _ArrowFile(_File):
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
            self._sizes = [(batch.num_rows, batch.nbytes) for batch in batches]
        except (pa.ArrowException, OSError) as error:
            raise errors.DataError(f"`{path}` can't be read as an Arrow file: {error}") from error

    def chunks(self) -> Iterator[tuple[range, int]]:
        for chunk in registry.group_parts(num_bytes for _, num_bytes in self._sizes):
            yield chunk, sum(self._sizes[index][0] for index in chunk)

    def read(self, chunk: range, columns: list[str], num_rows: int | None) -> "pa.Table":
        import pyarrow as pa

        # Create a reader in each call, because threads can't share a reader.
        get = (
            pa.ipc.open_file(self._map).get_batch if self._has_index else self._batches.__getitem__
        )
        table = pa.Table.from_batches([get(index) for index in chunk])
        return table.select(columns).slice(0, num_rows)


class ArrowSource(_TableSource):
    """Arrow files, streams or files with an index, with the same columns.

    Compressed files are decompressed once more when the source is opened, to count their rows. The
    rows of a compressed stream stay in memory.
    """

    _library = ("pyarrow", "arrow", "parquet")
    _file_cls = _ArrowFile


class _ParquetFile(_File):
    def __init__(self, path: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._path = path
        try:
            self._footer = pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            hint = " (set `source` to its format)" if isinstance(error, pa.ArrowInvalid) else ""
            raise errors.DataError(
                f"`{path}` can't be read as a Parquet file{hint}: {error}"
            ) from error
        self.schema = self._footer.schema.to_arrow_schema()

    def chunks(self) -> Iterator[tuple[range, int]]:
        groups = [self._footer.row_group(index) for index in range(self._footer.num_row_groups)]
        for chunk in registry.group_parts(group.total_byte_size for group in groups):
            yield chunk, sum(groups[index].num_rows for index in chunk)

    def read(self, chunk: range, columns: list[str], num_rows: int | None) -> "pa.Table":
        import pyarrow as pa

        with self._opened() as opened:
            if num_rows is None:
                return opened.read_row_groups(list(chunk), columns=columns)
            batches = opened.iter_batches(num_rows, list(chunk), columns=columns, use_threads=False)
            return pa.Table.from_batches([next(batches)])

    def integer_range(self, name: str) -> tuple[int, int] | None:
        """Return the smallest and largest integer of a column if the file footer contains them."""
        paths = [self._footer.schema.column(i).path for i in range(self._footer.num_columns)]
        if name not in paths:
            return None
        column = paths.index(name)
        least, greatest = [], []
        for index in range(self._footer.num_row_groups):
            statistics = self._footer.row_group(index).column(column).statistics
            if statistics is None or not statistics.has_min_max:
                return None
            least.append(statistics.min)
            greatest.append(statistics.max)
        return (min(least), max(greatest)) if least else None

    def _opened(self) -> "pq.ParquetFile":
        import pyarrow.parquet as pq

        # Open the file in each call, because threads can't share a `ParquetFile`.
        return pq.ParquetFile(self._path, metadata=self._footer)


class ParquetSource(_TableSource):
    """Parquet files with the same columns.

    The footer of each file is read once, when the source is opened. It holds the number of rows and
    the ranges of integers.
    """

    _library = ("pyarrow", "parquet", "parquet")
    _file_cls = _ParquetFile

    def integer_range(self, name: str) -> tuple[int, int] | None:
        ranges = [file.integer_range(name) for file in dict.fromkeys(f for f, _ in self._chunks)]
        known = [one for one in ranges if one is not None]
        if len(known) < len(ranges) or not known:
            return None
        return min(least for least, _ in known), max(greatest for _, greatest in known)


# A lock for loading datasets one at a time: during loading, the library `datasets` deletes a lock
# of `tqdm` that all threads share.
_LOADING = threading.Lock()


class _SavedDataset(_File):
    def __init__(self, path: str) -> None:
        import datasets

        try:
            with _LOADING:
                loaded = datasets.load_from_disk(path)
        except (OSError, ValueError) as error:
            raise errors.DataError(
                f"`{path}` can't be read as a Hugging Face dataset: {error} Expected a directory "
                "that was written by `Dataset.save_to_disk`."
            ) from error
        if isinstance(loaded, datasets.DatasetDict):
            splits = ", ".join(f"`{os.path.join(path, name)}`" for name in loaded)
            raise errors.DataError(
                f"`{path}` holds several splits. Set `input_path` to one of them: {splits}."
            )
        self._dataset: datasets.Dataset = loaded
        self._select = functools.cache(self._select_columns)
        self.schema = loaded.features.arrow_schema

    def chunks(self) -> Iterator[tuple[range, int]]:
        count = len(self._dataset)
        size = registry.rows_per_chunk(self._dataset.data.nbytes, count)
        for begin in range(0, count, size):
            rows = range(begin, min(begin + size, count))
            yield rows, len(rows)

    def read(self, chunk: range, columns: list[str], num_rows: int | None) -> "pa.Table":
        table = self._select(tuple(columns))
        return table[chunk.start : chunk.stop if num_rows is None else chunk[:num_rows].stop]

    def _select_columns(self, columns: tuple[str, ...]) -> Any:
        # In the format `arrow`, slices are not copied. Selecting columns visits the whole file, so
        # `_select` caches the result.
        return self._dataset.select_columns([*columns]).with_format("arrow")


class HuggingFaceSource(_TableSource):
    """Directories of datasets with the same columns, mapped into memory. A chunk is a slice.

    Values are read as they are stored: an image, for example, is a column `image.bytes` of encoded
    images and a column `image.path`. The paths are the directories of `Dataset.save_to_disk`; for
    the splits of a `DatasetDict`, these are its subdirectories.
    """

    _library = ("datasets", "huggingface", "hf")
    _file_cls = _SavedDataset


class CsvSource(_TableSource):
    """CSV files with a header line, values separated by commas, and the same columns.

    A chunk is a range of bytes that ends with a line. The lines are counted once, when the source
    is opened, so that reading can start at any row. Line breaks within quotes belong to a value, as
    in RFC 4180.

    The dtypes are inferred from the first 4 MiB: int64, float64, bool, dates and times as int64,
    or text. An empty value is NaN in a column of floats, and an error in other columns but texts.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        registry.import_library("pyarrow.csv", "csv", "parquet")
        self.files = list(paths)
        with concurrent.futures.ThreadPoolExecutor(_FILES_COUNTED_AT_ONCE) as pool:
            headers = list(pool.map(_read_header, self.files))
            counted = list(pool.map(_count_rows, self.files, [size for _, size in headers]))
        self._names = headers[0][0]
        for file, (names, _) in zip(self.files, headers, strict=True):
            if names != self._names:
                raise errors.DataError(
                    f"`{file}` has the columns {', '.join(names)}, unlike `{self.files[0]}`, whose "
                    f"columns are {', '.join(self._names)}."
                )
        self._parts = [
            (file, *part) for file, parts in zip(self.files, counted, strict=True) for part in parts
        ]
        self.chunk_rows = np.array([rows for *_, rows in self._parts], np.int64)
        self._types: dict[str, pa.DataType] = {}
        self._selected: list[str] = []
        self.specs = {}
        if self._parts:
            first = self._table(0)
            self._reader = ColumnReader(first.schema, columns, self.files[0])
            self._selected = self._reader.read_names
            self._types = {name: first.schema.field(name).type for name in self._selected}
            self.specs = self._reader.infer_specs(first)

    def _table(self, chunk: int, num_rows: int | None = None) -> "pa.Table":
        import pyarrow as pa
        from pyarrow import csv as pa_csv

        path, begin, end, num_lines = self._parts[chunk]
        with open(path, "rb") as file:
            file.seek(begin)
            content = file.read(end - begin)
        # Blocks that fit into the CPU cache are the fastest, but a line must fit into a block. The
        # first chunk is read as a single block, because Arrow infers the dtypes from one block.
        has_long_lines = len(content) > num_lines * _LONG_LINE_BYTES
        is_one_block = has_long_lines or not self._types
        try:
            table = pa_csv.read_csv(
                pa.BufferReader(content),
                pa_csv.ReadOptions(
                    column_names=self._names,
                    block_size=len(content) + 1 if is_one_block else _CSV_BLOCK_BYTES,
                    use_threads=False,
                ),
                # Set `newlines_in_values`, which slows down parsing, only if there are quotes: only
                # quoted values can contain line breaks.
                pa_csv.ParseOptions(newlines_in_values=b'"' in content),
                pa_csv.ConvertOptions(
                    column_types=self._types, include_columns=self._selected or None
                ),
            )
        except pa.ArrowException as error:
            raise errors.DataError(
                f"`{path}` can't be read between bytes {begin} and {end}: {error}. The dtypes were "
                f"inferred from the first 4 MiB of `{self.files[0]}`. Correct the values in "
                f"`{path}`."
            ) from error
        if table.num_rows != num_lines:
            raise errors.DataError(
                f"`{path}` has {table.num_rows} rows between bytes {begin} and {end}, but "
                f"{num_lines} lines. Check the quotes and empty lines of the file."
            )
        return table.slice(0, num_rows)


def _read_header(path: str) -> tuple[list[str], int]:
    """Return the column names and the length of the header line in bytes."""
    with open(path, "rb") as file:
        line = file.readline()
    if line.startswith(b"\x1f\x8b"):
        raise errors.DataError(
            f"`{path}` is compressed, so reading can't start at an arbitrary row. Decompress it, "
            "or convert it to Parquet."
        )
    try:
        names = next(csv.reader([line.decode("utf-8-sig").rstrip("\r\n")]), [])
    except UnicodeDecodeError as error:
        raise errors.DataError(
            f"`{path}` has a header that is not UTF-8: {error}. Convert the file to UTF-8."
        ) from error
    return names, len(line)


def _count_rows(path: str, begin: int) -> list[tuple[int, int, int]]:
    """Divide a file into chunks; return the start, end and number of rows of each chunk."""
    chunks = []
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(begin)
        rest = b""
        while content := file.read(registry.CHUNK_BYTES):
            content = rest + content
            is_last = begin + len(content) >= size
            ends = _line_ends(np.frombuffer(content, np.uint8), is_last=is_last)
            if not len(ends):
                rest = content
                continue
            end = len(content) if is_last else int(ends[-1]) + 1
            num_rows = _count_lines(np.frombuffer(content, np.uint8)[:end], ends)
            if num_rows:
                chunks.append((begin, begin + end, num_rows))
            begin, rest = begin + end, content[end:]
    return chunks


def _line_ends(content: npt.NDArray[np.uint8], *, is_last: bool) -> npt.NDArray[np.int64]:
    """Return the positions of the line breaks that end a row of `content`.

    The content must start outside quotes. If `is_last` is set and the last row lacks a line break,
    the end of the content is included.
    """
    ends = np.flatnonzero(content == _LINE_BREAK)
    quotes = np.flatnonzero(content == _QUOTE)
    if len(quotes):
        # A line break within quotes has an odd number of quotes before it.
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    if is_last and (not len(ends) or ends[-1] != len(content) - 1):
        ends = np.append(ends, len(content))
    return ends


def _count_lines(content: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> int:
    """Return how many of the lines that end at `ends` are not empty."""
    lengths = np.diff(ends, prepend=-1) - 1
    short = np.flatnonzero(lengths <= 1)
    is_empty = lengths[short] == 0
    starts = ends[short] - lengths[short]
    of_one = ~is_empty
    is_empty[of_one] = content[starts[of_one]] == _RETURN
    return len(ends) - int(is_empty.sum())


class ArrayRecordSource(registry.Source):
    """ArrayRecord files, the format of Grain, whose rows are serialized records.

    A chunk is a range of records of one file.

    Args:
        paths: The files.
        columns: Must be empty, because a decoder selects the features of a record.

    Raises:
        ConfigValueError: The library `array_record` is not installed, or columns are given.
        DataError: A file can't be read.
    """

    has_columns = False

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        registry.import_library(
            "array_record.python.array_record_module", "array_record", "arrayrecord"
        )
        if columns:
            raise errors.ConfigValueError(
                f"`columns` is {list(columns)}, but the source 'array_record' has no columns: its "
                "records are bytes. Select features with `decoder_fn`."
            )
        self.files = list(paths)
        self.specs = {_RECORD: tf.TensorSpec([], tf.string)}
        self._chunks: list[tuple[int, int, int]] = []
        for number, path in enumerate(self.files):
            reader = _open_records(path)
            num_records = reader.num_records()
            reader.close()
            size = registry.rows_per_chunk(os.path.getsize(path), num_records)
            for begin in range(0, num_records, size):
                self._chunks.append((number, begin, min(begin + size, num_records)))
        self.chunk_rows = np.array([end - begin for _, begin, end in self._chunks], np.int64)

    def read(self, chunk: int) -> registry.Columns:
        number, begin, end = self._chunks[chunk]
        reader = _open_records(self.files[number])
        records = np.empty(end - begin, object)
        records[:] = reader.read(begin, end)
        reader.close()
        return {_RECORD: records}


def _open_records(path: str) -> "array_record_module.ArrayRecordReader":
    from array_record.python import array_record_module

    try:
        reader = array_record_module.ArrayRecordReader(path, _RECORD_OPTIONS)
    except (RuntimeError, ValueError) as error:
        raise errors.DataError(f"`{path}` can't be read as an ArrayRecord file: {error}") from error
    if not reader.ok():
        raise errors.DataError(
            f"`{path}` can't be read as an ArrayRecord file. Set `source` to the format of the "
            "file, or write it again."
        )
    return reader
