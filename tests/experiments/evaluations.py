"""Comparison of a run's last evaluation with `--mode=eval` on its checkpoint."""

import json
import pathlib
from typing import Any

import pytest

from official_lite import pipeline, telemetry

# The fields that may differ between two evaluations of the same weights.
_TIMES = {"wall_time", "steps_per_second"}


def assert_equal_to_mode_eval(params: Any, model_dir: pathlib.Path) -> None:
    """Train for four steps, evaluate the checkpoint again, and require the same metrics.

    The same program computes both evaluations, so their metrics differ by a few roundings at most.
    """
    length = {"train_steps": 4, "validation_interval": 2, "checkpoint_interval": 4}
    params.override({"trainer": {**length, "steps_per_loop": 2, "writers": ["jsonl"]}})
    params.runtime.execution = "graph"
    pipeline.RunPipeline(params, "train_and_eval", str(model_dir)).run()
    assert [record["step"] for record in validations(model_dir, "train_and_eval")] == [2, 4]
    _, logs = pipeline.RunPipeline(params, "eval", str(model_dir)).run()
    assert_recorded_as_in_training(model_dir)
    returned = telemetry.Record(step=4, split="validation", values=telemetry.numbers(logs))
    assert returned.values
    (recorded,) = validations(model_dir, "eval")
    for name, value in returned.flat().items():
        assert value == pytest.approx(recorded[name], rel=1e-6, nan_ok=True), name


def assert_recorded_as_in_training(model_dir: pathlib.Path) -> None:
    """Require that `--mode=eval` recorded the metrics of the last evaluation during training."""
    (evaluated,) = validations(model_dir, "eval")
    trained = validations(model_dir, "train_and_eval")[-1]
    assert evaluated.keys() == trained.keys()
    for name, value in trained.items():
        # The files contain `null` for values that are not finite.
        is_number = value is not None and not isinstance(value, str)
        expected = pytest.approx(value, rel=1e-6) if is_number else value
        assert evaluated[name] == expected, name
    assert evaluated.keys() > {"step", "split"}


def validations(model_dir: pathlib.Path, mode: str) -> list[dict[str, Any]]:
    """Return the evaluations that a mode has recorded, in order and without their times."""
    path = model_dir / ("metrics.json" if "train" in mode else f"metrics.{mode}.json")
    lines = path.read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["split"] == "validation"]
    return [{key: record[key] for key in record.keys() - _TIMES} for record in records]
