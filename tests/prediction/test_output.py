import json
import pathlib

import numpy as np
import pytest

from official_lite.common import errors, files
from official_lite.prediction import output

FORMATS = ("jsonl", "parquet", "tfrecord")

# 47 rows in batches of 8, in shards of 10.
BATCHES = [np.arange(start, min(start + 8, 47), dtype=np.float32) for start in range(0, 47, 8)]


def _open(directory, file_format="jsonl", **made_from) -> output.PredictionOutput:
    return output.PredictionOutput(
        str(directory), file_format, rows_per_shard=10, made_from={"seed": 1, **made_from}
    )


def _predict(directory, file_format="jsonl", num_batches: int | None = None) -> None:
    """Writes batches, all of them or some; without all of them, nothing is finished."""
    with _open(directory, file_format) as writer:
        for batch in BATCHES[writer.next_batch : num_batches]:
            writer.write({"x": batch, "y": np.stack([batch, -batch], axis=1)})
        if num_batches is None:
            writer.finish()


def _contents(directory: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_shards_hold_all_rows_in_order(tmp_path) -> None:
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
def test_resumed_output_has_the_bytes_of_an_unbroken_one(file_format: str, tmp_path) -> None:
    _predict(tmp_path / "unbroken", file_format)
    for num_batches in range(7):
        _predict(tmp_path / "resumed", file_format, num_batches)
    _predict(tmp_path / "resumed", file_format)
    assert _contents(tmp_path / "resumed") == _contents(tmp_path / "unbroken")


def test_an_end_at_any_rename_repeats_and_misses_nothing(tmp_path, monkeypatch) -> None:
    _predict(tmp_path / "unbroken")
    rename, count = files.rename, 0

    def break_off(source: str, target: str) -> None:
        nonlocal count
        count += 1
        if count == last:
            raise KeyError("the end")
        rename(source, target)

    # One for the first progress, and two for each of five shards.
    for last in range(1, 12):
        directory = tmp_path / str(last)
        count = 0
        with monkeypatch.context() as patch:
            patch.setattr(files, "rename", break_off)
            with pytest.raises(KeyError):
                _predict(directory)
        if last > 1:
            # What a killed process leaves, beside complete files.
            (directory / f"predictions-00009.jsonl.{'0' * 32}.tmp").write_text("half")
        _predict(directory)
        assert _contents(directory) == _contents(tmp_path / "unbroken")


def test_rows_that_fill_the_last_shard_leave_no_empty_one(tmp_path) -> None:
    with _open(tmp_path) as writer:
        writer.write({"x": np.zeros(20)})
        progress = writer.finish()
    assert (progress.rows, progress.shards) == (20, 2)
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def test_predictions_made_from_something_else_are_kept(tmp_path) -> None:
    _predict(tmp_path)
    with pytest.raises(errors.ConfigValueError, match=r"weights: \(none\) -> ckpt-9"):
        _open(tmp_path, weights="ckpt-9")
    assert len(list(tmp_path.glob("*.jsonl"))) == 5


def test_a_directory_of_other_files_is_refused(tmp_path) -> None:
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(errors.ConfigValueError, match=r"thesis\.txt"):
        _open(tmp_path)


def test_missing_shard_is_reported(tmp_path) -> None:
    _predict(tmp_path, num_batches=4)
    (tmp_path / "predictions-00001.jsonl").unlink()
    with pytest.raises(errors.DataError, match=r"predictions-00001.jsonl is missing"):
        _open(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": -1, "made_from": {}}', '{"lines": 1}'])
def test_damaged_progress_is_reported(text: str, tmp_path) -> None:
    (tmp_path / output.PROGRESS).write_text(text)
    with pytest.raises(errors.DataError, match="is damaged"):
        _open(tmp_path)


def test_no_rows_are_an_error(tmp_path) -> None:
    with _open(tmp_path) as writer, pytest.raises(errors.DataError, match="empty"):
        writer.finish()


def test_error_of_the_writing_thread_is_raised(tmp_path) -> None:
    with _open(tmp_path) as writer:
        writer.write({"x": np.zeros(3, np.complex64)})
        with pytest.raises(errors.ConfigTypeError, match="complex64"):
            writer.finish()
