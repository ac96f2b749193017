import json

import numpy as np
import pytest

from official_lite.common import errors
from official_lite.data.sources import registry, schema
from tests import row_files


@pytest.fixture
def check(tmp_path):
    """Return a function that checks files with changed columns against the original schema."""
    path = str(tmp_path / "schema.json")

    def described(name, folder, changes=None):
        files = row_files.write(name, tmp_path / folder, changes=changes, num_files=1)
        return schema.describe(registry.open_source(name, [files.replace("*", "0")]))

    def check(name="parquet", changes=None):
        schema.write(path, described(name, f"{name}_before"), "label")
        schema.require_match(described(name, f"{name}_after", changes), path, "task.train_data")

    check.path = path
    return check


def test_schema_file_records_dtypes_shapes_label_range_and_nan_share(check):
    check()
    with open(check.path) as file:
        assert json.load(file)["columns"] == {
            "id": {"dtype": "int64", "shape": []},
            "x": {"dtype": "float64", "shape": [], "nan_share": 0.0},
            "label": {"dtype": "int64", "shape": [], "range": [0, 9]},
            "name": {"dtype": "string", "shape": []},
        }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"x": None}, r"'x' .*float64.* missing"),
        ({"y": np.arange(1000)}, r"'y' .*int64.* new"),
        ({"label": None, "lable": np.arange(1000) % 10}, "'label' .*Did you mean `lable`"),
        ({"x": np.arange(1000, dtype=np.float32)}, "'x': .*float64.*float32"),
        ({"x": np.ones([1000, 3])}, r"'x': .*\[\].*\[3\]"),
        ({"label": np.arange(1000) % 11}, "'label': .*0 to 9.*0 to 10"),
        ({"label": np.arange(1000) % 10 - 1}, "'label': .*0 to 9.* -1"),
        ({"x": np.where(np.arange(1000) % 50, 1.0, np.nan)}, "'x': .*0.00% NaN.*2.00%"),
    ],
)
def test_schema_mismatch_error_names_the_column_and_the_difference(check, changes, named):
    with pytest.raises(errors.DataError, match=named):
        check(changes=changes)


@pytest.mark.parametrize("name", row_files.NAMES)
def test_schema_check_accepts_any_range_in_columns_other_than_the_label(name, check):
    check(name, {"id": np.arange(1000) - 5000} if name == "parquet" else None)


def test_damaged_schema_file_is_named_in_the_error(tmp_path):
    path = tmp_path / "schema.json"
    for text in ("", "[]", '{"columns": {"x": {"type": "int64"}}}', '{"columns": {"x": 1}}'):
        path.write_text(text)
        with pytest.raises(errors.ConfigValueError, match=r"schema\.json` is not a schema file"):
            schema.read(str(path))
