"""Runs of experiments, their recorded evaluations, and the promises that all of them keep."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from official_lite import pipeline, telemetry
from tests import commands

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
    assert [record["step"] for record in validations(model_dir)] == [2, 4]
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
    trained = validations(model_dir)[-1]
    assert evaluated.keys() == trained.keys()
    for name, value in trained.items():
        # The files contain `null` for values that are not finite.
        is_number = value is not None and not isinstance(value, str)
        expected = pytest.approx(value, rel=1e-6) if is_number else value
        assert evaluated[name] == expected, name
    assert evaluated.keys() > {"step", "split"}


def assert_resumes_exactly(
    train: Callable[[str, int], keras.Model], interrupted_at: int, train_steps: int
) -> tuple[keras.Model, keras.Model]:
    """Require that an interrupted run ends with the exact weights of an uninterrupted run.

    Args:
        train: A function that trains in the directory of a name up to a step and returns the model.
        interrupted_at: The step at which the first part of the interrupted run ends.
        train_steps: The number of steps of both runs.

    Returns:
        The models of the run `uninterrupted` and of the run `resumed`.
    """
    uninterrupted = train("uninterrupted", train_steps)
    train("resumed", interrupted_at)
    resumed = train("resumed", train_steps)
    for one, other in zip(uninterrupted.weights, resumed.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    return uninterrupted, resumed


def train_by_command(experiment: str, model_dir: pathlib.Path, *flags: str) -> None:
    """Run `train.py --mode=train_and_eval` and require that it succeeds."""
    command = ["train.py", f"--experiment={experiment}", "--mode=train_and_eval"]
    finished = commands.run([*command, f"--model_dir={model_dir}", *flags])
    assert finished.returncode == 0, finished.stderr[-2000:]


def validations(model_dir: pathlib.Path, mode: str = "train_and_eval") -> list[dict[str, Any]]:
    """Return the evaluations that a mode has recorded, in order and without their times."""
    path = model_dir / ("metrics.json" if "train" in mode else f"metrics.{mode}.json")
    lines = path.read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["split"] == "validation"]
    return [{key: record[key] for key in record.keys() - _TIMES} for record in records]
