"""A toy run whose model is compressed."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.core import exp_factory, task_factory, train_lib

Run = Callable[..., list[np.ndarray]]


@pytest.fixture(scope="session")
def train_digits() -> Run:
    """Trains `vision/digits_mlp` for a few steps, and returns the weights of the model."""
    return _train_digits


@pytest.fixture(scope="session")
def read_metrics() -> Callable[[pathlib.Path], list[dict[str, float]]]:
    """Returns the training metrics that a run has written, one dictionary for each report."""
    return lambda run: [*map(json.loads, (run / "metrics.json").read_text().splitlines())]


def _train_digits(
    model_dir: pathlib.Path,
    compression: dict[str, Any] | None = None,
    *,
    strategy: tf.distribute.Strategy | None = None,
    mode: str = "train",
    execution: str = "graph",
    task: dict[str, Any] | None = None,
    **trainer: Any,
) -> list[np.ndarray]:
    params = exp_factory.get_exp_config("vision/digits_mlp")
    params.override(
        {
            "runtime": {"execution": execution},
            "task": {
                "model": {"units": [16]},
                "train_data": {"global_batch_size": 32},
                **(task or {}),
                "compression": compression,
            },
            "trainer": {
                "train_steps": 20,
                "steps_per_loop": 10,
                "checkpoint_interval": 10,
                "validation_interval": 20,
                "best_checkpoint_export_subdir": "",
                "best_checkpoint_eval_metric": "",
                "writers": ["jsonl"],
            },
        }
    )
    params.trainer.override(trainer)
    strategy = strategy or tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        built = task_factory.get_task(params.task)
    model, _ = train_lib.run_experiment(strategy, built, mode, params, str(model_dir))
    return [weight.numpy() for weight in model.weights]
