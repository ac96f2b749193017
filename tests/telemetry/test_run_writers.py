import json

import pytest
from absl import logging

from official_lite import telemetry
from official_lite.telemetry import console_writer, text_file_writers, tracking_writers


@pytest.fixture
def run(tmp_path):
    return telemetry.RunInfo(model_dir=str(tmp_path / "run"), total_steps=700, config={"a": 1})


RECORD = telemetry.Record(
    step=100, split="train", values={"loss": 0.5, "other": 1.0, "steps_per_second": 10.0}
)


def test_console_shows_the_fields_that_were_asked_for(run, monkeypatch):
    lines = []
    monkeypatch.setattr(logging, "info", lambda text, *args: lines.append(text % args))
    console_writer.console_of(run, fields=["loss", "eta"]).write(RECORD)
    assert lines == ["train | step 100 | loss 0.5 | eta 0:01:00"]


def test_files_are_in_the_folder_of_the_run(run, tmp_path):
    for build in (text_file_writers.jsonl_of, text_file_writers.csv_of):
        with build(run) as writer:
            writer.write(RECORD)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["loss"] == 0.5
    assert (tmp_path / "run" / "metrics_train.csv").exists()


def test_tracking_runs_get_the_config(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    with tracking_writers.mlflow_of(run, experiment="e", tracking_uri=uri) as writer:
        writer.write(RECORD)
    assert [path.read_text() for path in tmp_path.glob("mlruns/*/*/params/a")] == ["1"]
    with tracking_writers.wandb_of(run, project="p", mode="disabled") as writer:
        writer.write(RECORD)
    assert (tmp_path / "run" / "wandb_run_id").exists()
