import sys

import pytest

from official_lite.common import errors
from official_lite.data.sources import registry
from tests import row_files

LIBRARIES = {
    "parquet": ("pyarrow", "parquet"),
    "arrow": ("pyarrow", "parquet"),
    "csv": ("pyarrow.csv", "parquet"),
    "huggingface": ("datasets", "hf"),
    "array_record": ("array_record.python.array_record_module", "arrayrecord"),
}


@pytest.mark.parametrize("name", row_files.NAMES)
def test_a_missing_library_names_its_extra(name, tmp_path, monkeypatch):
    path = row_files.write(name, tmp_path, 3, num_files=1).replace("*", "0")
    module, extra = LIBRARIES[name]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(errors.ConfigValueError, match=rf"official-lite\[{extra}\]"):
        registry.open_source(name, [path])


@pytest.mark.parametrize("name", row_files.NAMES)
def test_a_file_of_another_format_is_named(name, tmp_path):
    path = tmp_path / f"other.{name}"
    path.write_bytes(b"\xff\xfe\x00 something else" * 100)
    with pytest.raises(errors.DataError, match=rf"other\.{name}"):
        registry.open_source(name, [str(path)])


@pytest.mark.parametrize("name", ["parquet", "arrow", "csv", "huggingface"])
def test_files_must_have_the_same_columns(name, tmp_path):
    first = row_files.write(name, tmp_path / "a", 10, num_files=1).replace("*", "0")
    other = row_files.write(name, tmp_path / "b", 10, num_files=1, changes={"x": None})
    with pytest.raises(errors.DataError, match=r"b/0"):
        registry.open_source(name, [first, other.replace("*", "0")])


def test_files_without_rows_are_an_error(tmp_path):
    changes = {"name": None}
    path = row_files.write("parquet", tmp_path, 0, num_files=1, changes=changes)
    path = path.replace("*", "0")
    with pytest.raises(errors.DataError, match="No rows"):
        registry.open_source("parquet", [path])


def test_a_missing_or_remote_file_is_named(tmp_path):
    with pytest.raises(errors.DataError, match=r"no\.parquet` does not exist"):
        registry.open_source("parquet", [str(tmp_path / "no.parquet")])
    with pytest.raises(errors.ConfigValueError, match="gs://bucket/x"):
        registry.open_source("parquet", ["gs://bucket/x.parquet"])


def test_a_file_that_was_written_again_is_opened_again(tmp_path):
    for num_rows in (10, 20):
        path = row_files.write("parquet", tmp_path, num_rows, num_files=1).replace("*", "0")
        assert registry.open_source("parquet", [path]).num_rows == num_rows
