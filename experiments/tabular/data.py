"""Tables with columns of numbers and categories, from CSV files or from scikit-learn."""

import csv
import dataclasses
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from experiments.tabular import configs
from official_lite.common import errors, suggestions
from official_lite.core import input_reader

__all__ = [
    "Table",
    "build_dataset",
    "build_table",
    "load_breast_cancer",
    "read_csv",
    "split_rows",
    "vocabulary_of",
]

# Larger numbers are refused, because numbers are stored as float32.
_MAX_NUMBER = float(np.finfo(np.float32).max)

# Maps each column name to the text of its cells.
Columns = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Table:
    """The parsed columns of a table.

    Attributes:
        numbers: The columns of numbers, float32 of shape (rows, columns); missing ones are NaN.
        categories: The columns of categories, strings of shape (rows, columns).
        labels: The index of each row's class, int32.
        numeric_names: The names of the columns of `numbers`.
        categorical_names: The names of the columns of `categories`.
        class_names: The names of the classes, in the order of their indices.
    """

    numbers: np.ndarray
    categories: np.ndarray
    labels: np.ndarray
    numeric_names: tuple[str, ...]
    categorical_names: tuple[str, ...]
    class_names: tuple[str, ...]


def read_csv(path: str) -> Columns:
    """Return the cells of a CSV file by the names of their columns, which are in its first line.

    Raises:
        DataError: If there is no such file, or a row has more or fewer cells than the first line.
    """
    file_path = pathlib.Path(path).expanduser()
    if not path or not file_path.is_file():
        raise errors.DataError(
            f"There is no CSV file {path!r}. Set `task.input_path` to a file whose first line "
            "names the columns."
        )
    with file_path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        names = next(reader, [])
        if len(set(names)) != len(names):
            raise errors.DataError(
                f"{path} has several columns of the same name: {names}. Give each column its own "
                "name."
            )
        rows = []
        for row in filter(None, reader):
            if len(row) != len(names):
                raise errors.DataError(
                    f"{path}, line {reader.line_num}: expected {len(names)} cells, as in the first "
                    f"line; found {len(row)}."
                )
            rows.append(row)
    if not rows:
        raise errors.DataError(
            f"{path} has no rows; expected at least one after the line with the column names."
        )
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def load_breast_cancer() -> Columns:
    """Return scikit-learn's breast cancer data in the form of `read_csv`."""
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise errors.DataError(
            "The breast cancer data require scikit-learn, which is not installed. Run "
            "`pip install 'official-lite[experiments]'`."
        ) from error
    data = datasets.load_breast_cancer()
    columns = {
        str(name): [repr(float(cell)) for cell in column]
        for name, column in zip(data.feature_names, data.data.T, strict=True)
    }
    return columns | {"diagnosis": [str(data.target_names[label]) for label in data.target]}


def build_table(columns: Columns, config: configs.TableConfig) -> Table:
    """Parse the columns of a table; the cells of columns that are not configured decide their kind.

    Raises:
        ConfigValueError: If no target is named.
        DataError: If a named column is missing, a label is empty, a cell is not a number, or there
            are no columns to predict from.
    """
    if not config.target:
        raise errors.ConfigValueError(
            f"`task.target` is empty. Set it to one of the columns {list(columns)}."
        )
    named = {field: list(getattr(config, field)) for field in ("numeric", "categorical", "ignored")}
    _require_columns({"target": [config.target], **named}, columns)
    left_out = {config.target, *config.ignored}
    features = [name for name in columns if name not in left_out]
    if not features:
        raise errors.DataError(
            f"The table has only the target and ignored columns, {sorted(left_out)}; expected at "
            "least one other column."
        )
    numeric = [
        name
        for name in features
        if name in config.numeric
        or (name not in config.categorical and all(map(_is_number, columns[name])))
    ]
    categorical = [name for name in features if name not in numeric]
    cells = columns[config.target]
    if "" in cells:
        raise errors.DataError(
            f"The column {config.target!r}, which `task.target` names, is empty in row "
            f"{cells.index('') + 1}; expected a class in each row."
        )
    class_names, labels = np.unique(np.array(cells), return_inverse=True)
    numbers = [_numbers(name, columns[name]) for name in numeric]
    return Table(
        np.array(numbers, np.float32).reshape(len(numbers), len(cells)).T,
        np.array([columns[name] for name in categorical], str).reshape(-1, len(cells)).T,
        labels.astype(np.int32),
        tuple(numeric),
        tuple(categorical),
        tuple(map(str, class_names)),
    )


def split_rows(num_rows: int, config: configs.TableConfig) -> Mapping[str, np.ndarray]:
    """Return the indices of the rows of each split; each row is in one of them."""
    order = np.random.default_rng(config.split_seed).permutation(num_rows)
    is_test = np.arange(num_rows) % config.num_folds == config.fold
    others = order[~is_test]
    num_validation = round(config.validation_fraction * len(others))
    return {
        "train": others[num_validation:],
        "validation": others[:num_validation],
        "test": order[is_test],
    }


def vocabulary_of(categories: np.ndarray) -> list[str]:
    """Return the sorted distinct values of a column, including a value for empty cells."""
    # Empty cells need a name, because `StringLookup` reserves the empty string.
    return sorted({_category(cell) for cell in categories})


def build_dataset(
    table: Table,
    rows: Mapping[str, np.ndarray],
    params: configs.TableDataConfig,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of `(features, labels)`, shuffled and repeated for training.

    Features are a dict of `numbers`, and of `categories` as indices, where 0 is any category that
    the training rows don't have. Either is missing if the table has no such column.
    """
    chosen = rows[params.split.lower()]
    features = {}
    if table.numeric_names:
        features["numbers"] = table.numbers[chosen]
    if table.categorical_names:
        indices = [_look_up(column[rows["train"]], column[chosen]) for column in table.categories.T]
        features["categories"] = np.stack(indices, axis=1)
    return input_reader.from_arrays((features, table.labels[chosen]), params, input_context)


def _look_up(training: np.ndarray, cells: np.ndarray) -> np.ndarray:
    lookup = keras.layers.StringLookup(vocabulary=vocabulary_of(training))
    return lookup(tf.constant([_category(cell) for cell in cells])).numpy().astype(np.int32)


def _category(cell: str) -> str:
    return cell or "(empty)"


def _require_columns(fields: Mapping[str, Iterable[str]], columns: Columns) -> None:
    for field, names in fields.items():
        for name in names:
            if name not in columns:
                raise errors.DataError(
                    f"The table has no column {name!r}, which `task.{field}` names. "
                    f"{suggestions.did_you_mean(name, columns)}"
                )


def _is_number(cell: str) -> bool:
    try:
        return not cell or abs(float(cell)) <= _MAX_NUMBER
    except ValueError:
        return False


def _numbers(name: str, cells: Sequence[str]) -> list[float]:
    for number, cell in enumerate(cells, start=1):
        if not _is_number(cell):
            raise errors.DataError(
                f"Row {number} of the column {name!r} has {cell!r}; expected a number, or an empty "
                "cell for a missing one. If the column has categories, name it in "
                "`task.categorical` instead."
            )
    return [float(cell) if cell else math.nan for cell in cells]
