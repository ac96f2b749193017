"""Records, the information about a run, and the writers that wrap others or keep records."""

import dataclasses
import json

import numpy as np
import pytest
from absl import logging

from official_lite import telemetry
from official_lite.telemetry import text_file_writers, tracking_writers

RECORD = telemetry.Record(step=1, split="train", values={})


def test_record_is_immutable_and_its_flat_form_joins_nested_names():
    record = telemetry.Record(step=1, split="train", values={"a": 1, "b": {"c": 2, "d": {"e": 3}}})
    assert record.flat() == {"a": 1, "b/c": 2, "b/d/e": 3}
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.step = 2


def test_numpy_and_ml_dtypes_numbers_become_python_numbers():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    found = telemetry.numbers(
        {
            "loss": np.float32(0.5),
            "count": np.int64(3),
            "on": True,
            "set": {"x": np.array([2.0]), "half": ml_dtypes.bfloat16(0.5)},
        }
    )
    assert found == {"loss": 0.5, "count": 3, "on": 1, "set": {"x": 2.0, "half": 0.5}}
    assert {type(found["loss"]), type(found["count"])} == {float, int}


def test_value_that_is_not_a_scalar_is_omitted_with_one_warning(monkeypatch):
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: warnings.append(text % args))
    for _ in range(2):
        assert telemetry.numbers({"an_image": np.zeros([2, 2]), "x": 1}) == {"x": 1}
    assert len(warnings) == 1
    assert "`an_image` has the shape (2, 2)" in warnings[0]


@pytest.mark.parametrize(
    ("step", "total_steps", "rate", "expected"),
    [(40, 100, 2.0, 30.0), (120, 100, 2.0, 0.0), (40, None, 2.0, None), (40, 100, 0.0, None)],
)
def test_eta_is_computed_from_the_remaining_steps_and_the_rate(step, total_steps, rate, expected):
    values = {"steps_per_second": rate}
    record = telemetry.Record(step=step, split="train", values=values, total_steps=total_steps)
    assert record.eta_seconds == expected
    assert dataclasses.replace(record, values={}).eta_seconds is None


def test_flat_config_uses_override_paths_and_masks_passwords():
    config = {"task": {"model": {"units": 3}, "losses": ["a", {"b": 1}]}, "seed": None}
    url = "mysql://me:secret@host/a"
    run = telemetry.RunInfo("/runs/a", 10, {**config, "url": url, "urls": [url]})
    assert run.flat_config() == {
        "task.model.units": 3,
        "task.losses": '["a", {"b": 1}]',
        "seed": None,
        "url": "mysql://me:***@host/a",
        "urls": '["mysql://me:***@host/a"]',
    }


def test_evaluation_job_writes_its_metrics_to_a_separate_file():
    def file(mode):
        return telemetry.RunInfo("/run", 1, {}, mode=mode).file("metrics.json")

    assert file("train_and_eval") == "/run/metrics.json"
    assert file("continuous_eval") == "/run/metrics.continuous_eval.json"


def test_file_and_tracking_writers_use_the_model_dir_and_config_of_their_run(tmp_path, monkeypatch):
    run = telemetry.RunInfo(model_dir=str(tmp_path / "run"), total_steps=700, config={"a": 1})
    for build in (text_file_writers.jsonl_of, text_file_writers.csv_of):
        with build(run) as writer:
            writer.write(dataclasses.replace(RECORD, values={"loss": 0.5}))
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["loss"] == 0.5
    assert (tmp_path / "run" / "metrics_train.csv").exists()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    with tracking_writers.mlflow_of(run, experiment="e", tracking_uri=uri) as writer:
        writer.write(RECORD)
    assert [path.read_text() for path in tmp_path.glob("mlruns/*/*/params/a")] == ["1"]
    with tracking_writers.wandb_of(run, project="p", mode="disabled") as writer:
        writer.write(RECORD)
    assert (tmp_path / "run" / "wandb_run_id").exists()


class Recorder(telemetry.Writer):
    def __init__(self, name="", calls=None, failure=None):
        self.name, self.failure = name, failure
        self.calls = [] if calls is None else calls

    def write(self, record):
        self._note("write")

    def flush(self):
        self._note("flush")

    def _note(self, act):
        self.calls.append(f"{act} {self.name}".strip())
        if self.failure:
            raise self.failure


def test_writer_is_flushed_by_sync_and_when_its_context_ends_with_an_error():
    with pytest.raises(TypeError, match="write"):
        telemetry.Writer()
    writer = Recorder()
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError
    writer.sync()
    assert writer.calls == ["flush", "flush"]


def test_multi_writer_calls_its_writers_in_order():
    calls = []
    with telemetry.MultiWriter([Recorder("a", calls), Recorder("b", calls)]) as writer:
        writer.write(RECORD)
        writer.flush()
    # The `close` method of the base class flushes.
    assert calls == ["write a", "write b", "flush a", "flush b", "flush a", "flush b"]


@pytest.mark.parametrize("act", ["write", "flush", "close"])
def test_multi_writer_calls_all_writers_even_if_one_fails(act):
    calls = []
    bad = Recorder("bad", calls, OSError("disk full"))
    writer = telemetry.MultiWriter([bad, Recorder("good", calls)])
    with pytest.raises(OSError, match="disk full"):
        writer.write(RECORD) if act == "write" else getattr(writer, act)()
    assert [call.split()[1] for call in calls] == ["bad", "good"]


def test_last_records_writer_keeps_the_last_record_of_each_split():
    writer = telemetry.LastRecordsWriter()
    for step, split, values in [
        (1, "train", {"early": 0.0}),
        (2, "train", {"loss": 3.0, "clean": {"f1": 0.5}}),
        # Later values of the same step join the earlier ones.
        (2, "train", {"swa/loss": 2.0, "clean": {"recall": 1.0}}),
        (3, "validation", {"loss": 2.0}),
    ]:
        writer.write(telemetry.Record(step=step, split=split, values=values))
    row = {"step": 2, "loss": 3.0, "clean/f1": 0.5, "swa/loss": 2.0, "clean/recall": 1.0}
    assert writer.rows() == {"train": row, "validation": {"step": 3, "loss": 2.0}}
    writer.rewind(2)
    assert list(writer.rows()) == ["train"]
