import csv
import os
import signal
import subprocess
import sys
import time

import pytest

from official_lite import telemetry
from official_lite.common import files


def write(path, *records):
    with telemetry.CsvWriter(path) as writer:
        for step, split, values in records:
            writer.write(telemetry.Record(step=step, split=split, values=values))


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_split_is_a_table(tmp_path):
    values = {"loss": 0.5, "clean": {"accuracy": 0.25}}
    write(tmp_path / "new" / "m.csv", (1, "train", values), (2, "validation", {"loss": 2}))
    assert (
        tmp_path / "new" / "m_train.csv"
    ).read_text() == "step,loss,clean/accuracy\n1,0.5,0.25\n"
    assert read(tmp_path / "new" / "m_validation.csv") == [{"step": "2", "loss": "2"}]


def test_splits_of_similar_names_have_tables_of_their_own(tmp_path):
    splits = ["a/b", "a_b", "a b", "a%2Fb", "é.1-x"]
    write(tmp_path / "m.csv", *((1, split, {"x": n}) for n, split in enumerate(splits)))
    tables = sorted(tmp_path.iterdir())
    assert sorted(read(table)[0]["x"] for table in tables) == list("01234")
    assert {"m_a_b.csv", "m_a%2Fb.csv", "m_é.1-x.csv"} <= {table.name for table in tables}


def test_late_column_is_empty_before(tmp_path):
    write(
        tmp_path / "m.csv",
        (1, "train", {"a": 1}),
        (2, "train", {"a, or b": 2, "a": 3}),
        (3, "train", {"c": 4}),
    )
    assert read(tmp_path / "m_train.csv") == [
        {"step": "1", "a": "1", "a, or b": "", "c": ""},
        {"step": "2", "a": "3", "a, or b": "2", "c": ""},
        {"step": "3", "a": "", "a, or b": "", "c": "4"},
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["m_train.csv"]


def test_restart_appends_in_the_columns_that_are_there(tmp_path):
    write(tmp_path / "m.csv", (1, "train", {"a": 1, "b": 2}))
    write(tmp_path / "m.csv", (2, "train", {"b": 3, "c": 4}))
    assert read(tmp_path / "m_train.csv") == [
        {"step": "1", "a": "1", "b": "2", "c": ""},
        {"step": "2", "a": "", "b": "3", "c": "4"},
    ]


def test_what_is_not_finite_can_be_read_back(tmp_path):
    write(tmp_path / "m.csv", (1, "train", {"a": float("nan"), "b": float("-inf")}))
    [row] = read(tmp_path / "m_train.csv")
    assert (row["a"], float(row["b"])) == ("nan", float("-inf"))


def test_value_can_not_take_the_name_of_the_step(tmp_path):
    write(tmp_path / "m.csv", (3, "train", {"step": 99, "a": 1}))
    assert read(tmp_path / "m_train.csv") == [{"step": "3", "a": "1"}]


@pytest.mark.slow
def test_process_killed_in_the_middle_of_a_row_loses_that_row(tmp_path):
    # It dies when half of the third row has gone to the operating system.
    script = f"""
import os, signal
from official_lite import telemetry
writer = telemetry.CsvWriter({str(tmp_path / "m.csv")!r})
for step in (1, 2):
    writer.write(telemetry.Record(step=step, split="train", values={{"loss": 0.125}}))
with open({str(tmp_path / "m_train.csv")!r}, "a") as file:
    file.write("3,0.1")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (tmp_path / "m_train.csv").read_text().endswith("3,0.1")
    write(tmp_path / "m.csv", (3, "train", {"loss": 0.5}))
    assert [(row["step"], row["loss"]) for row in read(tmp_path / "m_train.csv")] == [
        ("1", "0.125"),
        ("2", "0.125"),
        ("3", "0.5"),
    ]


def test_header_that_could_not_be_written_is_made_up_for_with_the_next_row(
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
        assert caplog.text.count("so lines are lost: disk full") == 1
        writer.write(telemetry.Record(step=3, split="train", values={"a": 3, "b": 3}))
    assert read(tmp_path / "m_train.csv") == [
        {"step": "1", "a": "1", "b": ""},
        {"step": "3", "a": "3", "b": "3"},
    ]


def test_steps_that_come_again_are_recorded_once_in_every_table(tmp_path):
    rows = [(step, split, {"a": step}) for step in (1, 2, 3) for split in ("train", "validation")]
    write(tmp_path / "m.csv", *rows)
    with telemetry.CsvWriter(tmp_path / "m.csv") as writer:
        writer.rewind(2)
        assert len(read(tmp_path / "m_validation.csv")) == 2
        writer.write(telemetry.Record(step=2, split="validation", values={"a": 7}))
        writer.write(telemetry.Record(step=3, split="train", values={"a": 8, "b": 9}))
    assert read(tmp_path / "m_validation.csv") == [
        {"step": "1", "a": "1"},
        {"step": "2", "a": "7"},
    ]
    assert [row["a"] for row in read(tmp_path / "m_train.csv")] == ["1", "2", "8"]


def test_seconds_of_a_row_do_not_grow_with_the_square_of_its_columns(tmp_path):
    def fastest_row(num_columns):
        values = {f"value_{index}": float(index) for index in range(num_columns)}
        seconds = []
        with telemetry.CsvWriter(tmp_path / f"{num_columns}.csv") as writer:
            for step in range(4):
                start = time.process_time()
                writer.write(telemetry.Record(step=step, split="train", values=values))
                seconds.append(time.process_time() - start)
        return min(seconds[1:])

    # With a comparison of each pair of names, it would be 100 times as long.
    assert fastest_row(20_000) < 40 * fastest_row(2_000)
