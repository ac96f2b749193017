import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.prediction import output


def _predictions():
    return {
        "index": np.arange(3, dtype=np.int64),
        "score": np.array([0.1, np.nan, -np.inf], np.float32),
        "box": np.arange(12, dtype=np.float64).reshape(3, 2, 2) / 3,
        "is_cat": np.array([True, False, True]),
        "name": np.array([b"a", "ü".encode(), b""], object),
    }


def _write(file_format: str, path, predictions=None) -> None:
    columns = output.as_columns(predictions or _predictions())
    file = output.create_shard(file_format, str(path))
    file.write({name: column[:2] for name, column in columns.items()})
    file.write({name: column[2:] for name, column in columns.items()})
    file.close()


def test_json_lines_hold_the_rows(tmp_path) -> None:
    _write("jsonl", tmp_path / "rows")
    lines = (tmp_path / "rows").read_text().splitlines()
    assert [json.loads(line)["score"] for line in lines] == [0.1, None, None]
    assert lines[1].startswith('{"index": 1, "score": null, "box": [[1.33')
    assert json.loads(lines[1])["name"] == "ü"
    assert json.loads(lines[2])["box"] == _predictions()["box"][2].tolist()


def test_parquet_holds_the_columns(tmp_path) -> None:
    _write("parquet", tmp_path / "rows")
    table = pq.read_table(tmp_path / "rows").to_pydict()
    assert table["index"] == [0, 1, 2]
    assert table["name"] == ["a", "ü", ""]
    assert table["is_cat"] == [True, False, True]
    np.testing.assert_array_equal(np.array(table["box"]), _predictions()["box"])
    np.testing.assert_array_equal(np.float32(table["score"]), _predictions()["score"])


def test_tfrecords_hold_an_example_per_row(tmp_path) -> None:
    _write("tfrecord", tmp_path / "rows")
    rows = tf.data.TFRecordDataset(str(tmp_path / "rows")).batch(3).get_single_element()
    features = {
        "index": tf.io.FixedLenFeature([], tf.int64),
        "box": tf.io.FixedLenFeature([2, 2], tf.float32),
        "is_cat": tf.io.FixedLenFeature([], tf.int64),
        "name": tf.io.FixedLenFeature([], tf.string),
        "score": tf.io.FixedLenFeature([], tf.float32),
    }
    parsed = tf.io.parse_example(rows, features)
    assert parsed["index"].numpy().tolist() == [0, 1, 2]
    assert parsed["is_cat"].numpy().tolist() == [1, 0, 1]
    assert parsed["name"].numpy()[1].decode() == "ü"
    np.testing.assert_array_equal(parsed["score"], _predictions()["score"])
    np.testing.assert_allclose(parsed["box"], _predictions()["box"])


@pytest.mark.parametrize("file_format", ["jsonl", "parquet", "tfrecord"])
def test_equal_rows_become_equal_bytes(file_format: str, tmp_path) -> None:
    for name in "ab":
        _write(file_format, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_short_floats_become_float32(dtype) -> None:
    column = output.as_columns({"x": tf.constant([0.5], dtype).numpy()})["x"]
    assert column.dtype == np.float32
    assert column.tolist() == [0.5]


def test_bytes_that_are_no_text_are_reported() -> None:
    with pytest.raises(errors.DataError, match="encode_base64"):
        output.as_columns({"x": np.array([b"\xff"], object)})


def test_a_dtype_without_a_column_is_refused() -> None:
    with pytest.raises(errors.ConfigTypeError, match="complex64"):
        output.as_columns({"x": np.zeros(1, np.complex64)})


def test_rows_of_a_batch_may_be_longer_than_those_of_another(tmp_path) -> None:
    file = output.create_shard("parquet", str(tmp_path / "rows"))
    for length in (1, 0, 3):
        file.write({"x": np.ones((2, length), np.int32)})
    file.close()
    rows = pq.read_table(tmp_path / "rows")["x"].to_pylist()
    assert [len(row) for row in rows] == [1, 1, 0, 0, 3, 3]


def test_large_parquet_has_several_row_groups(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(output, "_BYTES_PER_ROW_GROUP", 100)
    _write("parquet", tmp_path / "rows", {"x": np.ones((3, 9))})
    file = pq.ParquetFile(tmp_path / "rows")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [2, 1]


def test_missing_library_is_named_with_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(errors.ConfigValueError, match=r"official-lite\[parquet\]"):
        output.require_library("parquet")
    output.require_library("jsonl")
