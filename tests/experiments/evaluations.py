"""Compares the last evaluation of a run with `--mode=eval` on its checkpoint."""

import json
import pathlib
from typing import Any

import pytest

from official_lite import pipeline, telemetry


def assert_equal_to_mode_eval(params: Any, model_dir: pathlib.Path) -> None:
    """Trains for four steps and evaluates the checkpoint once more; all metrics are the same."""
    length = {"train_steps": 4, "validation_interval": 2, "checkpoint_interval": 4}
    params.override({"trainer": {**length, "steps_per_loop": 2, "writers": ["jsonl"]}})
    params.runtime.execution = "graph"
    pipeline.RunPipeline(params, "train_and_eval", str(model_dir)).run()
    records = _evaluations(model_dir)
    assert [record["step"] for record in records] == [2, 4]
    _, logs = pipeline.RunPipeline(params, "eval", str(model_dir)).run()
    record = telemetry.Record(step=4, split="validation", values=telemetry.numbers(logs))
    assert record.values
    for name, value in record.flat().items():
        assert value == pytest.approx(records[-1][name], rel=1e-6, nan_ok=True), name


def _evaluations(model_dir: pathlib.Path) -> list[dict[str, Any]]:
    lines = (model_dir / "metrics.json").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["split"] == "validation"]
