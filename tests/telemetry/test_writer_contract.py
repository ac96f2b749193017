"""Properties of all writers: records survive restarts, and each is written once."""

import contextlib
import csv
import dataclasses
import io
import json
import pathlib
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.common import files


def record(step, split="train", **values):
    return telemetry.Record(step=step, split=split, values=values or {"loss": float(step)})


def _read_lines(directory):
    path = directory / "m.json"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(o["step"], o["split"], o.get("loss")) for o in map(json.loads, lines)]


def _read_tables(directory):
    rows = []
    for path in sorted(directory.glob("m_*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                loss = float(row["loss"]) if row["loss"] else None
                rows.append((int(row["step"]), path.stem.removeprefix("m_"), loss))
    return rows


def _read_events(directory):
    return [
        (event.step, path.parent.name, float(tf.make_ndarray(value.tensor)))
        for path in sorted(directory.glob("*/events*"))
        for event in _whole_events(path)
        for value in event.summary.value
        if value.tag == "loss"
    ]


def _whole_events(path):
    # TensorBoard, too, ignores an incomplete last event.
    with contextlib.suppress(tf.errors.DataLossError):
        yield from tf.compat.v1.train.summary_iterator(str(path))


@dataclasses.dataclass(frozen=True)
class Kind:
    """A file writer: how it is built, how its records are read, and the pattern of its files."""

    build: Callable[[pathlib.Path], telemetry.Writer]
    read: Callable[[pathlib.Path], list[tuple[int, str, float | None]]]
    pattern: str


def _jsonl(directory):
    return telemetry.JsonLinesWriter(directory / "m.json")


FILES = {
    "jsonl": Kind(_jsonl, _read_lines, "m.json"),
    "csv": Kind(lambda d: telemetry.CsvWriter(d / "m.csv"), _read_tables, "m_train.csv"),
    "tensorboard": Kind(telemetry.TensorBoardWriter, _read_events, "train/events*"),
    "async": Kind(lambda d: telemetry.AsyncWriter(_jsonl(d)), _read_lines, "m.json"),
    "several": Kind(lambda d: telemetry.MultiWriter([_jsonl(d)]), _read_lines, "m.json"),
}
OTHERS = {
    "console": lambda d: telemetry.ConsoleWriter(stream=io.StringIO()),
    "bar": lambda d: telemetry.ProgressWriter(10, io.StringIO()),
    "last records": lambda d: telemetry.LastRecordsWriter(),
    "wandb": lambda d: telemetry.WandbWriter(d, mode="disabled"),
    "no directory": lambda d: telemetry.TensorBoardWriter(None),
}
ALL = {**{name: kind.build for name, kind in FILES.items()}, **OTHERS}


@pytest.fixture(params=FILES)
def kind(request):
    return FILES[request.param]


@pytest.fixture(params=ALL)
def build(request):
    return ALL[request.param]


def test_every_writer_accepts_images_and_histograms_and_works_after_being_closed(build, tmp_path):
    full = dataclasses.replace(
        record(2),
        images={"i": np.zeros([2, 2, 3], np.uint8)},
        histograms={"h": telemetry.Histogram(edges=np.array([0.0, 1.0]), counts=np.array([2.0]))},
    )
    writer = build(tmp_path)
    writer.close()
    for step in (1, 3):
        writer.write(record(step))
        writer.write(full)
        writer.progress(step)
        writer.flush()
        writer.sync()
        writer.rewind(step)
        writer.close()
        writer.close()


def test_synced_records_are_in_the_files_before_the_writer_is_closed(kind, tmp_path):
    writer = kind.build(tmp_path / "new")
    writer.write(record(1))
    writer.write(record(2, "validation"))
    writer.sync()
    assert sorted(kind.read(tmp_path / "new")) == [(1, "train", 1.0), (2, "validation", 2.0)]
    writer.close()


def test_restarted_run_appends_to_earlier_records(kind, tmp_path):
    for step in (1, 2):
        with kind.build(tmp_path) as writer:
            writer.write(record(step))
    assert sorted(kind.read(tmp_path)) == [(1, "train", 1.0), (2, "train", 2.0)]


def test_steps_repeated_after_a_rewind_are_recorded_once(kind, tmp_path):
    with kind.build(tmp_path) as killed:
        for step in (10, 20, 30):
            killed.write(record(step))
            killed.write(record(step, "validation"))
    with kind.build(tmp_path) as writer:
        writer.rewind(20)
        writer.sync()
        steps = [step for step, split, _ in kind.read(tmp_path) if split == "train"]
        assert steps == [10, 20]
        # The evaluation of the restored step is repeated, too.
        writer.write(record(20, "validation", loss=0.5))
        writer.write(record(30, loss=0.25))
    assert sorted(kind.read(tmp_path)) == [
        (10, "train", 10.0),
        (10, "validation", 10.0),
        (20, "train", 20.0),
        (20, "validation", 0.5),
        (30, "train", 0.25),
    ]


def test_new_values_at_the_restored_step_do_not_replace_the_existing_record(kind, tmp_path):
    with kind.build(tmp_path) as writer:
        writer.write(record(10))
    with kind.build(tmp_path) as writer:
        writer.rewind(10)
        writer.write(record(10, of_a_hook=4.0))
    assert (10, "train", 10.0) in kind.read(tmp_path)


def test_record_truncated_by_a_kill_is_removed(kind, tmp_path):
    with kind.build(tmp_path) as writer:
        writer.write(record(1))
        writer.write(record(2))
    [path] = tmp_path.glob(kind.pattern)
    path.write_bytes(path.read_bytes()[:-3])
    with kind.build(tmp_path) as writer:
        writer.rewind(1)
        writer.write(record(2, loss=0.5))
    assert sorted(kind.read(tmp_path)) == [(1, "train", 1.0), (2, "train", 0.5)]


def test_full_disk_loses_records_with_a_warning_but_later_records_are_written(
    kind, tmp_path, monkeypatch, caplog
):
    def fail(*_, **__):
        raise OSError("disk full")

    writer = kind.build(tmp_path)
    # `log_first_n` would log only a few times per process.
    monkeypatch.setattr(
        logging, "log_first_n", lambda level, text, n, *a: logging.log(level, text, *a)
    )
    with monkeypatch.context() as patch:
        for owner, name in [(files, "open_file"), (tf.summary, "create_file_writer")]:
            patch.setattr(owner, name, fail)
        patch.setattr(files, "write_text", fail)
        for step in (1, 2):
            writer.write(record(step))
        writer.sync()
    assert "disk full" in caplog.text
    writer.write(record(3))
    writer.close()
    assert kind.read(tmp_path) == [(3, "train", 3.0)]


@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_logged_value_named_step_does_not_replace_the_step_of_the_record(name, tmp_path):
    with FILES[name].build(tmp_path) as writer:
        values = {"step": 99.0, "loss": 1.0}
        writer.write(telemetry.Record(step=3, split="train", values=values))
    assert FILES[name].read(tmp_path) == [(3, "train", 1.0)]


@pytest.mark.parametrize("kind", [FILES["jsonl"], FILES["csv"]], ids=["jsonl", "csv"])
def test_record_written_twice_before_a_rewind_to_its_step_is_kept_once(kind, tmp_path):
    with kind.build(tmp_path) as earlier:
        for one in (record(10), record(10, end=1.0), record(10, "validation")):
            earlier.write(one)
    with kind.build(tmp_path) as writer:
        # An evaluation before training continues from step 10.
        writer.write(record(10, "validation", loss=0.5))
        writer.rewind(10)
    assert kind.read(tmp_path) == [
        (10, "train", 10.0),
        (10, "train", None),
        (10, "validation", 0.5),
    ]
