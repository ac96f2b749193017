"""Text file formats, and properties of their writers beyond `test_writer_contract.py`."""

import csv
import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_lite import telemetry
from official_lite.common import files
from official_lite.telemetry import text_file_writers


def write(writer, *records):
    with writer:
        for step, split, values in records:
            writer.write(telemetry.Record(step=step, split=split, values=values))


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# Line files.


@pytest.mark.parametrize(
    ("before", "kept"), [("", ""), ("one\n", "one\n"), ("on", ""), ("é\né", "é\n")]
)
def test_incomplete_last_line_of_a_file_is_removed_before_lines_are_appended(
    tmp_path, before, kept
):
    path = tmp_path / "lines"
    path.write_text(before, encoding="utf-8")
    file = text_file_writers.LineFile(path)
    file.append("next")
    assert path.read_text(encoding="utf-8") == kept + "next\n"
    file.close()
    file.append("last")
    file.close()
    assert path.read_text(encoding="utf-8") == kept + "next\nlast\n"


def test_full_disk_logs_one_warning_until_a_line_can_be_written_again(
    tmp_path, monkeypatch, caplog
):
    def fail(path, mode):
        raise OSError("disk full")

    file = text_file_writers.LineFile(tmp_path / "lines")
    for count in (1, 2):
        with monkeypatch.context() as context:
            context.setattr(text_file_writers.files, "open_file", fail)
            for _ in range(3):
                file.append("lost")
        assert caplog.text.count("disk full") == count
        file.append("kept")
        file.close()
    assert (tmp_path / "lines").read_text() == "kept\nkept\n"


def test_sync_calls_fsync_only_after_new_lines(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    file = text_file_writers.LineFile(tmp_path / "lines")
    file.sync()
    file.append("one")
    assert not synced
    file.sync()
    file.sync()
    assert len(synced) == 1


# JSON Lines files.


def test_each_json_line_starts_with_step_split_and_wall_time(tmp_path):
    times = iter([1e9, 1e9 + 0.25])
    writer = telemetry.JsonLinesWriter(tmp_path / "m", clock=lambda: next(times))
    values = {"loss": 0.5, "clean": {"accuracy": 0.9}}
    write(writer, (1, "train", values), (2, "train", {"a": math.nan, "b": math.inf}))
    first, second = read_lines(tmp_path / "m")
    assert list(first) == ["step", "split", "wall_time", "loss", "clean/accuracy"]
    assert second == {"step": 2, "split": "train", "wall_time": 1e9 + 0.25, "a": None, "b": None}


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=5), st.floats() | st.integers(), max_size=4))
def test_json_lines_writer_writes_valid_json_for_any_names_and_values(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("lines") / "m"
    write(telemetry.JsonLinesWriter(path), (1, "train", values))
    [line] = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    written = json.loads(line)
    del written["wall_time"]
    expected = {name: value if math.isfinite(value) else None for name, value in values.items()}
    # The fields of the record take precedence over values of the same names.
    assert written == {**expected, "step": 1, "split": "train"}


def test_kill_during_rewind_loses_no_record(tmp_path, monkeypatch):
    def killed(source, target):
        raise KeyboardInterrupt

    path = tmp_path / "m"
    write(telemetry.JsonLinesWriter(path), (10, "train", {}), (20, "train", {}))
    monkeypatch.setattr("os.replace", killed)
    with telemetry.JsonLinesWriter(path) as writer, pytest.raises(KeyboardInterrupt):
        writer.rewind(10)
    assert [line["step"] for line in read_lines(path)] == [10, 20]


def test_rewind_keeps_lines_that_are_not_records(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b'\xff not ours\n[1]\n{"step": 30, "split": "train"}\n')
    with telemetry.JsonLinesWriter(path) as writer:
        writer.rewind(20)
    assert path.read_bytes() == b"\xff not ours\n[1]\n"


# CSV files.


def test_csv_writer_writes_one_file_for_each_split(tmp_path):
    values = {"loss": 0.5, "clean": {"accuracy": 0.25}, "bad": float("-inf")}
    splits = ["a/b", "a_b", "a b", "a%2Fb", "é.1-x"]
    write(telemetry.CsvWriter(tmp_path / "m.csv"), *((1, split, values) for split in splits))
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) == len(splits)
    assert {"m_a_b.csv", "m_a%2Fb.csv", "m_é.1-x.csv"} <= names
    text = (tmp_path / "m_a_b.csv").read_text()
    assert text == "step,loss,clean/accuracy,bad\n1,0.5,0.25,-inf\n"


def test_new_csv_file_may_be_added_while_the_others_are_flushed_to_disk(tmp_path, monkeypatch):
    with telemetry.CsvWriter(tmp_path / "m.csv") as writer:

        def add_table(_):
            # A background save flushes in its own thread, while training writes.
            writer.write(telemetry.Record(step=2, split="eval", values={"a": 2}))

        monkeypatch.setattr(files, "sync", add_table)
        writer.write(telemetry.Record(step=1, split="train", values={"a": 1}))
        writer.sync()
    assert read_table(tmp_path / "m_eval.csv") == [{"step": "2", "a": "2"}]


def test_new_csv_column_is_empty_in_earlier_rows_even_after_a_restart(tmp_path):
    write(
        telemetry.CsvWriter(tmp_path / "m.csv"),
        (1, "train", {"a": 1}),
        (2, "train", {"a, or b": 2, "a": 3}),
    )
    write(telemetry.CsvWriter(tmp_path / "m.csv"), (3, "train", {"c": 4}))
    assert read_table(tmp_path / "m_train.csv") == [
        {"step": "1", "a": "1", "a, or b": "", "c": ""},
        {"step": "2", "a": "3", "a, or b": "2", "c": ""},
        {"step": "3", "a": "", "a, or b": "", "c": "4"},
    ]


def test_csv_header_that_could_not_be_written_is_written_with_the_next_row(
    tmp_path, monkeypatch, caplog
):
    def fail(*_):
        raise OSError("disk full")

    with telemetry.CsvWriter(tmp_path / "m.csv") as writer:
        writer.write(telemetry.Record(step=1, split="train", values={"a": 1}))
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_text", fail)
            for _ in range(2):
                writer.write(telemetry.Record(step=2, split="train", values={"a": 2, "b": 2}))
        assert caplog.text.count("disk full") == 1
        writer.write(telemetry.Record(step=3, split="train", values={"a": 3, "b": 3}))
    assert read_table(tmp_path / "m_train.csv") == [
        {"step": "1", "a": "1", "b": ""},
        {"step": "3", "a": "3", "b": "3"},
    ]


def test_time_to_write_a_csv_row_is_not_quadratic_in_its_columns(tmp_path):
    def fastest_row(num_columns):
        values = {f"value_{index}": float(index) for index in range(num_columns)}
        seconds = []
        with telemetry.CsvWriter(tmp_path / f"{num_columns}.csv") as writer:
            for step in range(4):
                start = time.process_time()
                writer.write(telemetry.Record(step=step, split="train", values=values))
                seconds.append(time.process_time() - start)
        return min(seconds[1:])

    # Comparing each pair of names would take 100 times as long.
    assert fastest_row(20_000) < 40 * fastest_row(2_000)
