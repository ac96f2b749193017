import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_lite import telemetry


def record(step, **values):
    return telemetry.Record(step=step, split="train", values=values)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_is_one_object_with_step_split_and_time_first(tmp_path):
    path = tmp_path / "new" / "metrics.json"
    times = iter([1e9, 1e9 + 0.25])
    with telemetry.JsonLinesWriter(path, clock=lambda: next(times)) as writer:
        writer.write(record(1, loss=0.5, clean={"accuracy": 0.9}))
        writer.write(record(2, loss=0.25))
    first, second = read(path)
    assert list(first) == ["step", "split", "wall_time", "loss", "clean/accuracy"]
    assert second == {"step": 2, "split": "train", "wall_time": 1e9 + 0.25, "loss": 0.25}


def test_what_is_not_finite_is_null(tmp_path):
    with telemetry.JsonLinesWriter(tmp_path / "m") as writer:
        writer.write(record(1, a=math.nan, b=math.inf))
    [line] = read(tmp_path / "m")
    assert (line["a"], line["b"]) == (None, None)


def test_restart_appends(tmp_path):
    for step in (1, 2):
        with telemetry.JsonLinesWriter(tmp_path / "m") as writer:
            writer.write(record(step))
    assert [line["step"] for line in read(tmp_path / "m")] == [1, 2]


def test_line_that_a_crash_cut_off_is_removed(tmp_path):
    path = tmp_path / "m"
    path.write_text('{"step": 1, "split": "train"}\n{"step": 2, "spl')
    with telemetry.JsonLinesWriter(path) as writer:
        writer.write(record(2))
    assert [line["step"] for line in read(path)] == [1, 2]


def test_written_line_is_on_disk_before_close(tmp_path):
    writer = telemetry.JsonLinesWriter(tmp_path / "m")
    writer.write(record(1))
    assert len(read(tmp_path / "m")) == 1
    writer.close()
    writer.close()


def test_value_can_not_take_the_name_of_the_step(tmp_path):
    with telemetry.JsonLinesWriter(tmp_path / "m") as writer:
        values = {"step": 99.0, "loss": 1.0}
        writer.write(telemetry.Record(step=3, split="train", values=values))
    [line] = read(tmp_path / "m")
    assert (line["step"], line["loss"]) == (3, 1.0)


def test_images_and_histograms_are_left_out(tmp_path):
    image = np.zeros([2, 2, 3], np.uint8)
    record = telemetry.Record(step=2, split="train", values={"x": 1}, images={"i": image})
    with telemetry.JsonLinesWriter(tmp_path / "m", clock=lambda: 5.0) as writer:
        writer.write(record)
    line = '{"step": 2, "split": "train", "wall_time": 5.0, "x": 1}\n'
    assert (tmp_path / "m").read_text() == line


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=5), st.floats() | st.integers(), max_size=4))
def test_any_values_make_valid_lines(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("lines") / "m"
    with telemetry.JsonLinesWriter(path) as writer:
        writer.write(telemetry.Record(step=1, split="train", values=values))
    [line] = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    assert json.loads(line)["step"] == 1


def test_steps_that_come_again_are_recorded_once(tmp_path):
    path = tmp_path / "m"
    with telemetry.JsonLinesWriter(path) as writer:
        for step in (10, 20, 30):
            writer.write(record(step, loss=float(step)))
        writer.rewind(20)
        assert [line["step"] for line in read(path)] == [10, 20]
        writer.write(record(30, loss=0.0))
    assert [(line["step"], line["loss"]) for line in read(path)] == [(10, 10), (20, 20), (30, 0)]


def test_repeated_record_of_the_restored_step_replaces_the_one_before(tmp_path):
    path = tmp_path / "m"
    with telemetry.JsonLinesWriter(path) as writer:
        writer.write(record(10, loss=1.0))
        writer.write(telemetry.Record(step=10, split="validation", values={"loss": 2.0}))
    with telemetry.JsonLinesWriter(path) as writer:
        writer.rewind(10)
        writer.write(telemetry.Record(step=10, split="validation", values={"loss": 3.0}))
        writer.write(record(10, of_a_hook=4.0))
    found = [(line["split"], line.get("loss"), line.get("of_a_hook")) for line in read(path)]
    assert found == [("train", 1.0, None), ("validation", 3.0, None), ("train", None, 4.0)]


def test_kill_while_records_are_removed_loses_none(tmp_path, monkeypatch):
    def killed(source, target):
        raise KeyboardInterrupt

    path = tmp_path / "m"
    with telemetry.JsonLinesWriter(path) as writer:
        for step in (10, 20):
            writer.write(record(step))
        monkeypatch.setattr("os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            writer.rewind(10)
    assert [line["step"] for line in read(path)] == [10, 20]


def test_foreign_lines_stay(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b'\xff not ours\n[1]\n{"step": 30, "split": "train"}\n')
    with telemetry.JsonLinesWriter(path) as writer:
        writer.rewind(20)
    assert path.read_bytes() == b"\xff not ours\n[1]\n"
