import datetime

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from pyarrow import feather

from official_lite.common import errors
from official_lite.data.sources import registry


def _write_stream(table, path):
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)


@pytest.mark.parametrize("write", [feather.write_feather, _write_stream])
def test_streams_and_compressed_files_are_read(tmp_path, write):
    path = str(tmp_path / "table.arrow")
    write(pa.table({"x": range(100), "y": [[0.5, 1.5]] * 100}), path)
    source = registry.open_source("arrow", [path])
    assert source.num_rows == 100
    assert source.read(0)["x"].tolist() == list(range(100))
    assert source.sample(0, 3)["y"].tolist() == [[0.5, 1.5]] * 3


@pytest.fixture
def open_table(tmp_path):
    """A function that writes a table and opens it as a source."""

    def open_table(columns, selected=(), **fields):
        path = str(tmp_path / "table.parquet")
        pq.write_table(pa.table(columns), path, **fields)
        return registry.open_source("parquet", [path], selected)

    return open_table


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, 2, 3], pa.uint8()), np.array([1, 2, 3], np.uint8)),
        (pa.array([1, 2, 3], pa.float16()), np.array([1, 2, 3], np.float16)),
        (pa.array([1, None, 3], pa.float32()), np.array([1, np.nan, 3], np.float32)),
        (pa.array([True, False, True]), np.array([True, False, True])),
        (pa.array(["a", "é", ""]), np.array([b"a", "é".encode(), b""], object)),
        (pa.array([b"\0\1", b"", b"x"]), np.array([b"\0\1", b"", b"x"], object)),
        (pa.array(["a", "b", "a"]).dictionary_encode(), np.array([b"a", b"b", b"a"], object)),
        (pa.array([[1, 2], [3, 4], [5, 6]]), np.array([[1, 2], [3, 4], [5, 6]])),
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
def test_values_keep_their_dtype_and_shape(open_table, column, expected):
    source = open_table({"x": column})
    values = source.read(0)["x"]
    np.testing.assert_array_equal(values, expected)
    assert values.dtype == expected.dtype
    assert source.specs["x"] == tf.TensorSpec(expected.shape[1:], tf.as_dtype(expected.dtype))


def test_a_struct_has_a_column_per_field(open_table):
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
def test_values_without_a_counterpart_name_their_column(open_table, column, message):
    source = open_table({"x": column})
    with pytest.raises(errors.DataError, match=message):
        source.read(0)


@pytest.mark.parametrize("type_", [pa.decimal128(5, 2), pa.map_(pa.string(), pa.int64())])
def test_a_type_without_a_counterpart_names_its_column(open_table, type_):
    columns = {"x": pa.array([None], type_), "y": [1]}
    with pytest.raises(errors.DataError, match=r"'x' .* has no counterpart"):
        open_table(columns)
    assert list(open_table(columns, ["y"]).specs) == ["y"]


def test_small_row_groups_are_read_together(tmp_path, monkeypatch):
    path = str(tmp_path / "table.parquet")
    pq.write_table(pa.table({"x": range(1000)}), path, row_group_size=10, compression="none")
    assert registry.open_source("parquet", [path]).chunk_rows.tolist() == [1000]
    monkeypatch.setattr(registry, "CHUNK_BYTES", 1 << 11)
    chunks = registry._open.__wrapped__("parquet", (path,), (), ()).chunk_rows
    assert len(chunks) > 1
    assert chunks.sum() == 1000


def test_the_range_of_integers_is_that_of_all_row_groups(tmp_path):
    path = str(tmp_path / "table.parquet")
    pq.write_table(pa.table({"x": range(1000), "y": [0.5] * 1000}), path, row_group_size=10)
    opened = registry.open_source("parquet", [path])
    assert opened.integer_range("x") == (0, 999)
    assert len(opened.sample(0, 5)["x"]) == 5
    pq.write_table(pa.table({"x": range(1000)}), path, write_statistics=False)
    assert registry.open_source("parquet", [path]).integer_range("x") is None


@pytest.fixture(autouse=True)
def _without_progress_bars():
    datasets.disable_progress_bars()


def test_values_are_read_as_they_are_stored(tmp_path):
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


def test_selected_rows_keep_their_order(tmp_path):
    dataset = datasets.Dataset.from_dict({"x": range(10)}).select([7, 2, 5])
    dataset.save_to_disk(tmp_path / "x")
    source = registry.open_source("huggingface", [str(tmp_path / "x")])
    assert source.read(0)["x"].tolist() == [7, 2, 5]


def test_splits_are_named(tmp_path):
    split = datasets.Dataset.from_dict({"x": [1]})
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(tmp_path / "x")
    with pytest.raises(errors.DataError, match=r"several splits.*x/train`, `.*x/test`"):
        registry.open_source("huggingface", [str(tmp_path / "x")])
