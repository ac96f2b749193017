"""Compares the last evaluation of a run with `--mode=eval` on its checkpoint."""

import json
import pathlib
from typing import Any

import pytest

from official_lite import pipeline, telemetry

# What differs between two evaluations of the same weights.
_TIMES = {"wall_time", "steps_per_second"}


def assert_equal_to_mode_eval(params: Any, model_dir: pathlib.Path) -> None:
    """Trains for four steps and evaluates the checkpoint once more; all metrics are the same.

    The same program computes both, so they differ by a few roundings at most.
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
    """The one evaluation of mode `eval` has all metrics of the last one in the training."""
    (evaluated,) = validations(model_dir, "eval")
    trained = validations(model_dir, "train_and_eval")[-1]
    assert evaluated.keys() == trained.keys()
    for name, value in trained.items():
        # The files have `null` for what is not finite.
        is_number = value is not None and not isinstance(value, str)
        expected = pytest.approx(value, rel=1e-6) if is_number else value
        assert evaluated[name] == expected, name
    assert evaluated.keys() > {"step", "split"}


def validations(model_dir: pathlib.Path, mode: str) -> list[dict[str, Any]]:
    """The evaluations of a mode in their order, without times."""
    path = model_dir / ("metrics.json" if "train" in mode else f"metrics.{mode}.json")
    lines = path.read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["split"] == "validation"]
    return [{key: record[key] for key in record.keys() - _TIMES} for record in records]
