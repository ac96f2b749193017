"""Conversion of the columns of an Arrow table to NumPy arrays, a whole column at a time.

Numbers without nulls are not copied. Structs become one column per field, named `column.field`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, suggestions
from official_lite.data.sources.source import Columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ColumnReader", "flatten"]


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

    def to_numpy(self, table: "pa.Table", specs: Mapping[str, tf.TensorSpec]) -> Columns:
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
