import json

import numpy as np
import pytest

from official_lite.common import errors
from official_lite.data.sources import registry, schema
from tests import row_files


@pytest.fixture
def check(tmp_path):
    """A function that compares changed files with the schema of the original files."""
    path = str(tmp_path / "schema.json")

    def described(name, folder, changes=None):
        files = row_files.write(name, tmp_path / folder, changes=changes, num_files=1)
        return schema.describe(registry.open_source(name, [files.replace("*", "0")]))

    def check(name="parquet", changes=None):
        schema.write(path, described(name, f"{name}_before"), "label")
        schema.require_match(described(name, f"{name}_after", changes), path, "task.train_data")

    check.path = path
    return check


@pytest.mark.parametrize("name", row_files.NAMES)
def test_the_same_data_match(name, check):
    check(name)


def test_the_file_states_dtypes_shapes_the_range_of_labels_and_the_share_of_nan(check):
    check()
    with open(check.path) as file:
        assert json.load(file)["columns"] == {
            "id": {"dtype": "int64", "shape": []},
            "x": {"dtype": "float64", "shape": [], "nan_share": 0.0},
            "label": {"dtype": "int64", "shape": [], "range": [0, 9]},
            "name": {"dtype": "string", "shape": []},
        }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": None}, r"column 'x' \(float64\) is missing"),
        ({"y": np.arange(1000)}, r"column 'y' \(int64\) is new"),
        (
            {"label": None, "lable": np.arange(1000) % 10},
            "'label' .* is missing. Did you mean `lable`",
        ),
        ({"x": np.arange(1000, dtype=np.float32)}, "'x': expected float64, found float32"),
        (
            {"x": np.ones([1000, 3])},
            r"'x': expected the shape \[\], found \[3\]",
        ),
        ({"label": np.arange(1000) % 11}, "'label': expected values from 0 to 9, found .* 0 to 10"),
        ({"label": np.arange(1000) % 10 - 1}, "'label': expected values from 0 to 9, found .* -1"),
        (
            {"x": np.where(np.arange(1000) % 50, 1.0, np.nan)},
            "'x': expected 0.00% NaN, found 2.00%",
        ),
    ],
)
def test_a_difference_names_the_column_and_what_was_expected(check, changes, message):
    with pytest.raises(errors.DataError, match=message):
        check(changes=changes)


def test_another_range_of_a_column_that_is_no_label_is_fine(check):
    check(changes={"id": np.arange(1000) - 5000})


def test_a_damaged_schema_file_is_named(tmp_path):
    path = tmp_path / "schema.json"
    for text in ("", "[]", '{"columns": {"x": {"type": "int64"}}}', '{"columns": {"x": 1}}'):
        path.write_text(text)
        with pytest.raises(errors.ConfigValueError, match=r"schema\.json` is not a schema file"):
            schema.read(str(path))
