"""The schema of a source of rows: the dtype, shape, range and share of NaN of each column.

A schema file is JSON and can be edited, for example to widen a range::

    {
      "columns": {
        "label": {"dtype": "int64", "shape": [], "range": [0, 9]},
        "x": {"dtype": "float32", "shape": [13], "nan_share": 0.02}
      }
    }
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from official_lite.common import errors, files, suggestions
from official_lite.data.sources.registry import Source

__all__ = ["ColumnSchema", "DataSchema", "describe", "read", "require_match", "write"]

# A sample consists of the first rows of a few evenly spaced chunks.
_SAMPLED_CHUNKS = 8
_ROWS_OF_A_CHUNK = 1000

# The tolerated increase in the share of NaN over the recorded share. Both shares are estimates from
# samples, so they may differ without a change in the data.
_NAN_TOLERANCE = 0.01

# The maximum number of differences that an error message lists.
_MAX_LISTED = 10


@dataclasses.dataclass(frozen=True)
class ColumnSchema:
    """The properties of a column.

    Attributes:
        dtype: The name of the dtype.
        shape: The shape of a value.
        range: The least and greatest integer; None if unknown or not to be checked.
        nan_share: The share of NaN in the values, from 0 to 1; None if the column has no floats.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    range: tuple[int, int] | None = None
    nan_share: float | None = None

    def differences(self, found: "ColumnSchema") -> Iterator[str]:
        """Yield the expected and the found value of each property that does not match."""
        if found.dtype != self.dtype:
            yield f"expected {self.dtype}, found {found.dtype}"
        if found.shape != self.shape:
            yield f"expected the shape {list(self.shape)}, found {list(found.shape)}"
        if self.range and found.range:
            if found.range[0] < self.range[0] or found.range[1] > self.range[1]:
                yield f"expected values {_span(self.range)}, found {_span(found.range)}"
        if self.nan_share is not None and found.nan_share is not None:
            # If the recorded share is 0, any NaN is reported, because one NaN makes the loss NaN.
            most = self.nan_share + _NAN_TOLERANCE if self.nan_share else 0.0
            if found.nan_share > most:
                yield f"expected {self.nan_share:.2%} NaN, found {found.nan_share:.2%}"


@dataclasses.dataclass(frozen=True)
class DataSchema:
    """The columns of a source by name."""

    columns: Mapping[str, ColumnSchema]

    def differences(self, found: "DataSchema") -> Iterator[str]:
        """Yield a sentence for each missing, new or changed column."""
        new = [name for name in found.columns if name not in self.columns]
        for name, column in self.columns.items():
            if name in found.columns:
                for difference in column.differences(found.columns[name]):
                    yield f"The column {name!r}: {difference}."
            else:
                hint = suggestions.did_you_mean(name, new or found.columns)
                yield f"The column {name!r} ({column.dtype}) is missing. {hint}".rstrip()
        for name in new:
            missing = [known for known in self.columns if known not in found.columns]
            hint = suggestions.did_you_mean(name, missing) if missing else ""
            yield f"The column {name!r} ({found.columns[name].dtype}) is new. {hint}".rstrip()


def describe(source: Source) -> DataSchema:
    """Describe the columns of a source.

    Ranges of integers are those in the files, if they state them. Otherwise they are taken, like
    the shares of NaN, from the first 1000 rows of 8 chunks at equal distances.
    """
    if not source.has_columns:
        return DataSchema({})
    count = min(_SAMPLED_CHUNKS, len(source.chunk_rows))
    numbers = np.linspace(0, len(source.chunk_rows) - 1, count).astype(int)
    samples = [source.sample(int(number), _ROWS_OF_A_CHUNK) for number in numbers]
    columns = {}
    for name, spec in source.specs.items():
        values = [sample[name] for sample in samples]
        column = ColumnSchema(spec.dtype.name, tuple(spec.shape))
        if spec.dtype.is_integer:
            found = source.integer_range(name) or _range(values)
            column = dataclasses.replace(column, range=found)
        if spec.dtype.is_floating:
            share = np.mean(np.concatenate([np.isnan(value).ravel() for value in values]))
            column = dataclasses.replace(column, nan_share=round(float(share), 6))
        columns[name] = column
    return DataSchema(columns)


def read(path: str) -> DataSchema:
    """Read a schema file.

    Raises:
        ConfigValueError: The file is not a schema.
    """
    try:
        content = json.loads(files.read_text(path))
        return DataSchema({name: _parse(one) for name, one in content["columns"].items()})
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise errors.ConfigValueError(
            f"`{path}` is not a schema file: {error!r}. Correct the file, or remove it to have it "
            "written again."
        ) from error


def write(path: str, schema: DataSchema, label_column: str = "") -> None:
    """Write a schema file.

    Args:
        path: The file.
        schema: The schema.
        label_column: The column whose range is recorded. The ranges of other columns are not
            recorded, because they usually differ in new data.
    """
    columns = {
        name: {
            key: value
            for key, value in dataclasses.asdict(column).items()
            if value is not None and (key != "range" or name == label_column)
        }
        for name, column in schema.columns.items()
    }
    files.makedirs(os.path.dirname(path) or ".")
    files.write_text(path, json.dumps({"columns": columns}, indent=2) + "\n")


def require_match(found: DataSchema, path: str, place: str) -> None:
    """Compare a source with a schema file.

    Args:
        found: The schema of the source.
        path: The schema file.
        place: The field of the config that names the source, for error messages.

    Raises:
        DataError: A column is missing, new or changed.
        ConfigValueError: The file is not a schema.
    """
    differences = list(read(path).differences(found))
    if not differences:
        return
    shown = differences[:_MAX_LISTED]
    if len(differences) > _MAX_LISTED:
        shown.append(f"… and {len(differences) - _MAX_LISTED} more differences.")
    raise errors.DataError(
        f"The data of `{place}` do not match the schema `{path}`.\n  "
        + "\n  ".join(shown)
        + "\nCorrect the data, or choose other `columns`. If the change is intended, edit the "
        "file, or remove it to have it written again."
    )


def _parse(content: Mapping[str, Any]) -> ColumnSchema:
    given = dict(content)
    given["shape"] = tuple(given.get("shape", ()))
    if given.get("range") is not None:
        least, greatest = given["range"]
        given["range"] = (least, greatest)
    return ColumnSchema(**given)


def _range(values: list[np.ndarray[Any, Any]]) -> tuple[int, int] | None:
    values = [value for value in values if value.size]
    if not values:
        return None
    return min(int(value.min()) for value in values), max(int(value.max()) for value in values)


def _span(bounds: tuple[int, int]) -> str:
    return f"from {bounds[0]} to {bounds[1]}"
