import json
import pathlib
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from official_lite.common import errors, files
from official_lite.prediction import output

FORMATS = ("jsonl", "parquet", "tfrecord")

# The 47 rows come in batches of 8 and are written to shards of 10 rows.
BATCHES = [np.arange(start, min(start + 8, 47), dtype=np.float32) for start in range(0, 47, 8)]


def _open(directory, file_format="jsonl", **made_from) -> output.PredictionOutput:
    return output.PredictionOutput(
        str(directory), file_format, rows_per_shard=10, made_from={"seed": 1, **made_from}
    )


def _predict(directory, file_format="jsonl", num_batches: int | None = None) -> None:
    """Write and finish all batches, or write the first `num_batches` without finishing."""
    with _open(directory, file_format) as writer:
        for batch in BATCHES[writer.next_batch : num_batches]:
            writer.write({"x": batch, "y": np.stack([batch, -batch], axis=1)})
        if num_batches is None:
            writer.finish()


def _contents(directory: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_prediction_shards_contain_all_rows_in_order(tmp_path) -> None:
    _predict(tmp_path)
    paths = sorted(tmp_path.glob("*.jsonl"))
    assert [path.name for path in paths] == [f"predictions-0000{i}.jsonl" for i in range(5)]
    shards = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    assert [len(shard) for shard in shards] == [10, 10, 10, 10, 7]
    assert [row["index"] for shard in shards for row in shard] == list(range(47))
    assert [row["x"] for shard in shards for row in shard] == list(range(47))
    progress = output.read_progress(str(tmp_path))
    assert (progress.rows, progress.shards, progress.is_complete) == (47, 5, True)


@pytest.mark.parametrize("file_format", FORMATS)
def test_resumed_prediction_output_is_byte_identical_to_uninterrupted_output(
    file_format: str, tmp_path
) -> None:
    _predict(tmp_path / "unbroken", file_format)
    for num_batches in range(7):
        _predict(tmp_path / "resumed", file_format, num_batches)
    _predict(tmp_path / "resumed", file_format)
    assert _contents(tmp_path / "resumed") == _contents(tmp_path / "unbroken")


def test_prediction_interrupted_at_any_rename_resumes_without_duplicate_or_missing_rows(
    tmp_path, monkeypatch
) -> None:
    _predict(tmp_path / "unbroken")
    rename, count = files.rename, 0

    def break_off(source: str, target: str) -> None:
        nonlocal count
        count += 1
        if count == last:
            raise KeyError("the end")
        rename(source, target)

    # One rename for the initial progress file and two for each of the five shards.
    for last in range(1, 12):
        directory = tmp_path / str(last)
        count = 0
        with monkeypatch.context() as patch:
            patch.setattr(files, "rename", break_off)
            with pytest.raises(KeyError):
                _predict(directory)
        if last > 1:
            # A killed process leaves a temporary file behind.
            (directory / f"predictions-00009.jsonl.{'0' * 32}.tmp").write_text("half")
        _predict(directory)
        assert _contents(directory) == _contents(tmp_path / "unbroken")


def test_rows_that_exactly_fill_the_last_shard_create_no_empty_shard(tmp_path) -> None:
    with _open(tmp_path) as writer:
        writer.write({"x": np.zeros(20)})
        progress = writer.finish()
    assert (progress.rows, progress.shards) == (20, 2)
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def _add_thesis(directory: pathlib.Path) -> None:
    (directory / "thesis.txt").write_text("")


def _remove_a_shard(directory: pathlib.Path) -> None:
    _predict(directory, num_batches=4)
    (directory / "predictions-00001.jsonl").unlink()


def _damage_progress(text: str):
    return lambda directory: (directory / output.PROGRESS).write_text(text)


@pytest.mark.parametrize(
    ("prepare", "error", "named"),
    [
        (_add_thesis, errors.ConfigValueError, "thesis.txt"),
        (_remove_a_shard, errors.DataError, "predictions-00001.jsonl"),
        (_damage_progress("{"), errors.DataError, output.PROGRESS),
        (_damage_progress('{"rows": -1, "made_from": {}}'), errors.DataError, output.PROGRESS),
    ],
)
def test_output_directory_with_foreign_missing_or_damaged_files_is_refused(
    tmp_path, prepare, error, named
) -> None:
    prepare(tmp_path)
    with pytest.raises(error, match=named):
        _open(tmp_path)


def test_resuming_a_prediction_with_different_weights_is_refused_and_deletes_no_files(
    tmp_path,
) -> None:
    _predict(tmp_path)
    with pytest.raises(errors.ConfigValueError, match=r"weights: \(none\) -> ckpt-9"):
        _open(tmp_path, weights="ckpt-9")
    assert len(list(tmp_path.glob("*.jsonl"))) == 5


def test_finishing_a_prediction_without_rows_raises_an_error(tmp_path) -> None:
    with _open(tmp_path) as writer, pytest.raises(errors.DataError, match="empty"):
        writer.finish()


@pytest.mark.parametrize(
    ("column", "error", "named"),
    [
        (np.zeros(3, np.complex64), errors.ConfigTypeError, "complex64"),
        (np.array([b"\xff"], object), errors.DataError, "encode_base64"),
    ],
)
def test_column_that_cannot_be_written_raises_when_the_output_is_finished(
    tmp_path, column, error, named
) -> None:
    with _open(tmp_path) as writer:
        writer.write({"x": column})
        with pytest.raises(error, match=named):
            writer.finish()


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


def test_json_lines_file_contains_one_object_per_row(tmp_path) -> None:
    _write("jsonl", tmp_path / "rows")
    lines = (tmp_path / "rows").read_text().splitlines()
    assert [json.loads(line)["score"] for line in lines] == [0.1, None, None]
    assert lines[1].startswith('{"index": 1, "score": null, "box": [[1.33')
    assert json.loads(lines[1])["name"] == "ü"
    assert json.loads(lines[2])["box"] == _predictions()["box"][2].tolist()


def test_parquet_file_contains_all_columns(tmp_path) -> None:
    _write("parquet", tmp_path / "rows")
    table = pq.read_table(tmp_path / "rows").to_pydict()
    assert table["index"] == [0, 1, 2]
    assert table["name"] == ["a", "ü", ""]
    assert table["is_cat"] == [True, False, True]
    np.testing.assert_array_equal(np.array(table["box"]), _predictions()["box"])
    np.testing.assert_array_equal(np.float32(table["score"]), _predictions()["score"])


def test_tfrecord_file_contains_one_example_per_row(tmp_path) -> None:
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


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_float16_and_bfloat16_prediction_columns_become_float32(dtype) -> None:
    column = output.as_columns({"x": tf.constant([0.5], dtype).numpy()})["x"]
    assert column.dtype == np.float32
    assert column.tolist() == [0.5]


def test_row_length_of_a_parquet_column_may_differ_between_batches(tmp_path) -> None:
    file = output.create_shard("parquet", str(tmp_path / "rows"))
    for length in (1, 0, 3):
        file.write({"x": np.ones((2, length), np.int32)})
    file.close()
    rows = pq.read_table(tmp_path / "rows")["x"].to_pylist()
    assert [len(row) for row in rows] == [1, 1, 0, 0, 3, 3]


def test_large_parquet_file_has_several_row_groups(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(output, "_BYTES_PER_ROW_GROUP", 100)
    _write("parquet", tmp_path / "rows", {"x": np.ones((3, 9))})
    file = pq.ParquetFile(tmp_path / "rows")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [2, 1]


def test_error_for_missing_pyarrow_names_the_extra_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(errors.ConfigValueError, match=r"official-lite\[parquet\]"):
        output.require_library("parquet")
    output.require_library("jsonl")
