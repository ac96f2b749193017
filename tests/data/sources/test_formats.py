"""Row file formats: what each reads, and which files it refuses."""

import datetime
import re
import sys
import threading

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from pyarrow import feather

from official_lite.common import errors
from official_lite.data.sources import registry
from tests import row_files


@pytest.fixture(autouse=True)
def _without_progress_bars():
    datasets.disable_progress_bars()


LIBRARIES = {
    "parquet": ("pyarrow", "parquet"),
    "arrow": ("pyarrow", "parquet"),
    "csv": ("pyarrow.csv", "parquet"),
    "huggingface": ("datasets", "hf"),
    "array_record": ("array_record.python.array_record_module", "arrayrecord"),
}


@pytest.mark.parametrize("name", row_files.NAMES)
def test_missing_library_error_names_the_pip_extra(name, tmp_path, monkeypatch):
    path = row_files.write(name, tmp_path, 3, num_files=1).replace("*", "0")
    module, extra = LIBRARIES[name]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(errors.ConfigValueError, match=rf"official-lite\[{extra}\]"):
        registry.open_source(name, [path])


@pytest.mark.parametrize("name", row_files.NAMES)
def test_error_for_a_row_file_of_the_wrong_format_names_the_file(name, tmp_path):
    path = tmp_path / f"other.{name}"
    path.write_bytes(b"\xff\xfe\x00 something else" * 100)
    with pytest.raises(errors.DataError, match=rf"other\.{name}"):
        registry.open_source(name, [str(path)])


@pytest.mark.parametrize("name", ["parquet", "arrow", "csv", "huggingface"])
def test_row_files_with_different_columns_are_refused(name, tmp_path):
    first = row_files.write(name, tmp_path / "a", 10, num_files=1).replace("*", "0")
    other = row_files.write(name, tmp_path / "b", 10, num_files=1, changes={"x": None})
    with pytest.raises(errors.DataError, match=r"b/0"):
        registry.open_source(name, [first, other.replace("*", "0")])


def test_source_that_cannot_be_opened_raises_an_error_naming_its_file(tmp_path):
    changes = {"name": None}
    without_rows = row_files.write("parquet", tmp_path, 0, num_files=1, changes=changes)
    header, packed = tmp_path / "header.csv", tmp_path / "packed.csv.gz"
    header.write_text("x,y\n")
    packed.write_bytes(b"\x1f\x8b\x08\x00\n1")
    for name, path, error in (
        ("parquet", without_rows.replace("*", "0"), errors.DataError),
        ("csv", str(header), errors.DataError),
        ("csv", str(packed), errors.DataError),
        ("parquet", str(tmp_path / "no.parquet"), FileNotFoundError),
        ("parquet", "gs://bucket/x.parquet", errors.ConfigValueError),
    ):
        with pytest.raises(error, match=re.escape(path)):
            registry.open_source(name, [path])


@pytest.mark.parametrize("name", ["parquet", "huggingface"])
def test_overwritten_row_file_is_read_again_when_its_source_is_reopened(name, tmp_path):
    for num_rows in (10, 20):
        path = row_files.write(name, tmp_path, num_rows, num_files=1).replace("*", "0")
        assert registry.open_source(name, [path]).num_rows == num_rows


def test_file_parts_are_grouped_until_a_chunk_reaches_its_minimum_size():
    half = registry.CHUNK_BYTES // 2
    groups = registry.group_parts([half, half, 3 * half, 1, 1, 2 * half, 5])
    assert groups == [range(2), range(2, 3), range(3, 6), range(6, 7)]
    assert registry.group_parts([]) == []


def test_rows_per_chunk_is_at_least_1_and_at_most_65536():
    assert registry.rows_per_chunk(1 << 40, 1000) == 1
    assert registry.rows_per_chunk(1000, 1000) == registry.rows_per_chunk(1, 1 << 40) == 1 << 16


def _write_stream(table, path):
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)


@pytest.mark.parametrize("write", [feather.write_feather, _write_stream])
def test_arrow_source_reads_arrow_streams_and_compressed_feather_files(tmp_path, write):
    path = str(tmp_path / "table.arrow")
    write(pa.table({"x": range(100), "y": [[0.5, 1.5]] * 100}), path)
    source = registry.open_source("arrow", [path])
    assert source.num_rows == 100
    assert source.read(0)["x"].tolist() == list(range(100))
    assert source.sample(0, 3)["y"].tolist() == [[0.5, 1.5]] * 3


@pytest.fixture
def open_table(tmp_path):
    """Return a function that writes a table and opens it as a source."""

    def open_table(columns, selected=(), **fields):
        path = str(tmp_path / "table.parquet")
        pq.write_table(pa.table(columns), path, **fields)
        return registry.open_source("parquet", [path], selected)

    return open_table


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, None, 3], pa.float32()), np.array([1, np.nan, 3], np.float32)),
        (pa.array([True, False, True]), np.array([True, False, True])),
        (pa.array(["a", "é", ""]), np.array([b"a", "é".encode(), b""], object)),
        (pa.array([b"\0\1", b"", b"x"]), np.array([b"\0\1", b"", b"x"], object)),
        (pa.array(["a", "b", "a"]).dictionary_encode(), np.array([b"a", b"b", b"a"], object)),
        (
            pa.array([[1.0, None], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
            np.array([[1, np.nan], [3, 4], [5, 6]], np.float32),
        ),
        (pa.array([[["a"], ["b"]]] * 3), np.array([[[b"a"], [b"b"]]] * 3, object)),
        (
            pa.array([datetime.datetime(1970, 1, 1, 0, 0, 1)] * 3, pa.timestamp("ms")),
            np.array([1000] * 3),
        ),
        (pa.array([datetime.date(1970, 1, 3)] * 3), np.array([2] * 3, np.int32)),
    ],
)
def test_parquet_values_are_read_with_the_expected_dtype_and_shape(open_table, column, expected):
    source = open_table({"x": column})
    values = source.read(0)["x"]
    np.testing.assert_array_equal(values, expected)
    assert values.dtype == expected.dtype
    assert source.specs["x"] == tf.TensorSpec(expected.shape[1:], tf.as_dtype(expected.dtype))


def test_struct_column_becomes_one_column_per_field(open_table):
    image = pa.array([{"bytes": b"1", "size": {"height": 2}}] * 2)
    columns = {"image": image, "label": [0, 1]}
    assert list(open_table(columns).specs) == ["image.bytes", "image.size.height", "label"]
    assert list(open_table(columns, ["image.bytes"]).specs) == ["image.bytes"]
    assert list(open_table(columns, ["image"]).read(0)) == ["image.bytes", "image.size.height"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1, None, 3]), "'x' .* 1 nulls in 3 values, .* tensor of int64"),
        (pa.array(["a", None, "b"]), "'x' .* 1 nulls in 3 values, .* tensor of string"),
        (pa.array([[1], [2, 3], []]), "'x' .* lists of 0 to 2 values; expected 1"),
        (pa.array([[1], None, [2]]), "'x' .* 1 nulls in 3 values, .* tensor of lists"),
    ],
)
def test_value_that_no_tensor_can_represent_raises_an_error_naming_its_column(
    open_table, column, message
):
    source = open_table({"x": column})
    with pytest.raises(errors.DataError, match=message):
        source.read(0)


@pytest.mark.parametrize("type_", [pa.decimal128(5, 2), pa.map_(pa.string(), pa.int64())])
def test_column_type_without_a_tensor_dtype_raises_only_if_its_column_is_read(open_table, type_):
    columns = {"x": pa.array([None], type_), "y": [1]}
    with pytest.raises(errors.DataError, match=r"'x' .* has no counterpart"):
        open_table(columns)
    assert list(open_table(columns, ["y"]).specs) == ["y"]


def test_small_row_groups_are_merged_into_larger_chunks(tmp_path, monkeypatch):
    path = str(tmp_path / "table.parquet")
    pq.write_table(pa.table({"x": range(1000)}), path, row_group_size=10, compression="none")
    assert registry.open_source("parquet", [path]).chunk_rows.tolist() == [1000]
    monkeypatch.setattr(registry, "CHUNK_BYTES", 1 << 11)
    chunks = registry._open.__wrapped__("parquet", (path,), (), ()).chunk_rows
    assert len(chunks) > 1
    assert chunks.sum() == 1000


def test_parquet_integer_range_covers_all_row_groups_and_is_none_without_statistics(tmp_path):
    path = str(tmp_path / "table.parquet")
    pq.write_table(pa.table({"x": range(1000), "y": [0.5] * 1000}), path, row_group_size=10)
    opened = registry.open_source("parquet", [path])
    assert opened.integer_range("x") == (0, 999)
    assert len(opened.sample(0, 5)["x"]) == 5
    pq.write_table(pa.table({"x": range(1000)}), path, write_statistics=False)
    assert registry.open_source("parquet", [path]).integer_range("x") is None


def test_saved_hugging_face_dataset_is_read_with_its_values_and_dtypes(tmp_path):
    features = datasets.Features(
        {
            "grid": datasets.Array2D((2, 3), "float32"),
            "label": datasets.ClassLabel(names=["a", "b"]),
            "tokens": datasets.Sequence(datasets.Value("int32"), length=4),
        }
    )
    grid = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
    content = {"grid": grid.tolist(), "label": [0, 1] * 5, "tokens": [[1, 2, 3, 4]] * 10}
    datasets.Dataset.from_dict(content, features).save_to_disk(tmp_path / "x")
    read = registry.open_source("huggingface", [str(tmp_path / "x")]).read(0)
    np.testing.assert_array_equal(read["grid"], grid)
    assert read["label"].tolist() == content["label"]
    assert read["tokens"].dtype == np.int32


def test_selected_rows_of_a_saved_hugging_face_dataset_keep_their_order(tmp_path):
    dataset = datasets.Dataset.from_dict({"x": range(10)}).select([7, 2, 5])
    dataset.save_to_disk(tmp_path / "x")
    source = registry.open_source("huggingface", [str(tmp_path / "x")])
    assert source.read(0)["x"].tolist() == [7, 2, 5]


def test_saved_dataset_dict_is_refused_with_the_paths_of_its_splits(tmp_path):
    split = datasets.Dataset.from_dict({"x": [1]})
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(tmp_path / "x")
    with pytest.raises(errors.DataError, match=r"several splits.*x/train`, `.*x/test`"):
        registry.open_source("huggingface", [str(tmp_path / "x")])


@pytest.fixture
def open_text(tmp_path, monkeypatch):
    """Return a function that writes a text and opens it as a CSV source in small chunks."""
    monkeypatch.setattr(registry, "CHUNK_BYTES", 64)

    def open_text(text, columns=()):
        path = tmp_path / "table.csv"
        path.write_bytes(text.encode())
        return registry._open.__wrapped__("csv", (str(path),), tuple(columns), ())

    return open_text


def _read(opened):
    chunks = [opened.read(chunk) for chunk in range(len(opened.chunk_rows))]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in opened.specs}


def test_quoted_csv_values_may_contain_line_breaks_and_quotes(open_text):
    texts = [f'{i} "quoted"\nin, two lines' if i % 3 else str(i) for i in range(100)]
    lines = ['"' + text.replace('"', '""') + f'",{i}' for i, text in enumerate(texts)]
    read = _read(open_text("text,number\n" + "\n".join(lines)))
    assert [text.decode() for text in read["text"]] == texts
    assert read["number"].tolist() == list(range(100))


@pytest.mark.parametrize(("line_break", "last"), [("\n", ""), ("\r\n", "x")])
def test_empty_csv_lines_are_skipped(open_text, line_break, last):
    lines = ["x", *(str(i) if i % 4 else "" for i in range(100)), "7" if last else ""]
    opened = open_text(line_break.join(lines))
    expected = [i for i in range(100) if i % 4] + [7] * bool(last)
    assert _read(opened)["x"].tolist() == expected


def test_empty_csv_values_become_nan_or_empty_strings(open_text):
    read = _read(open_text("x,y\n1,a\n,b\n2.5,\n"))
    np.testing.assert_array_equal(read["x"], [1, np.nan, 2.5])
    assert read["y"].tolist() == [b"a", b"b", b""]


def test_csv_value_of_an_unexpected_dtype_raises_an_error_with_its_position(open_text):
    opened = open_text("x\n" + "1\n" * 100 + "1.5\n")
    with pytest.raises(errors.DataError, match=r"table.csv` .* bytes .* int64.* first 4 MiB"):
        opened.read(len(opened.chunk_rows) - 1)


def test_array_record_source_yields_raw_records_and_refuses_column_selection(tmp_path):
    path = row_files.write("array_record", tmp_path, num_files=1).replace("*", "0")
    source = registry.open_source("array_record", [path])
    assert source.read(0)["record"].tolist() == [str(number).encode() for number in range(1000)]
    with pytest.raises(errors.ConfigValueError, match="has no columns"):
        registry.open_source("array_record", [path], ["x"])


def test_hugging_face_datasets_are_never_loaded_concurrently(tmp_path, monkeypatch):
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        datasets.Dataset.from_dict({"id": list(range(10))}).save_to_disk(path)
    load, lock = datasets.load_from_disk, threading.Lock()

    def load_alone(path):
        assert lock.acquire(blocking=False)
        try:
            return load(path)
        finally:
            lock.release()

    monkeypatch.setattr(datasets, "load_from_disk", load_alone)
    assert registry.open_source("huggingface", paths, []).num_rows == 30
