"""A toy experiment for the pipeline: a line fitted to points on a line."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite import pipeline
from official_lite.core import base_task
from official_lite.core import config_definitions as cfg
from official_lite.modeling.hyperparams import base_config
from tests.line_experiment import short_experiment


@dataclasses.dataclass
class LineConfig(cfg.TaskConfig):
    slope: float = 3.0


@base_config.bind(LineConfig)
class LineTask(base_task.Task):
    """A task with 32 examples."""

    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="line")])

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        # A `prepare` stage may change the slope of the data.
        slope = float(os.environ.get("LINE_SLOPE", self.task_config.slope))
        x = tf.random.stateless_normal((32, 2), (1, 2))
        batch_size = params.global_batch_size
        if input_context:
            batch_size = input_context.get_per_replica_batch_size(batch_size)
        return tf.data.Dataset.from_tensor_slices((x, slope * x[:, :1])).batch(batch_size)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(tf.square(tf.cast(model_outputs, tf.float32) - labels))


def line_experiment(**overrides: Any) -> cfg.ExperimentConfig:
    params = short_experiment(LineConfig, trainer={"writers": ["jsonl"]})
    params.override(overrides)
    params.lock()
    return params


@pytest.fixture
def experiment() -> Callable[..., cfg.ExperimentConfig]:
    """Return the function that builds the experiment config, with overrides."""
    return line_experiment


@pytest.fixture
def records() -> Callable[..., list[int]]:
    """Return a function that reads the steps recorded for one split."""

    def read(model_dir: pathlib.Path, split: str, name: str = "metrics.json") -> list[int]:
        lines = (model_dir / name).read_text().splitlines()
        return [r["step"] for r in map(json.loads, lines) if r["split"] == split]

    return read


@pytest.fixture
def context(tmp_path: pathlib.Path) -> Callable[..., pipeline.ExperimentContext]:
    """Return a function that builds a context in which no stage has run."""

    def make(mode: str = "train", **overrides: Any) -> pipeline.ExperimentContext:
        params = line_experiment(**overrides)
        return pipeline.ExperimentContext(params=params, mode=mode, model_dir=str(tmp_path))

    return make


@pytest.fixture
def log_of(tmp_path: pathlib.Path, log_as_train_py_does: None) -> Callable[..., str]:
    """Return a function that reads `log.txt`, which includes INFO lines as in a command."""
    return lambda path=tmp_path: (path / "log.txt").read_text()


@pytest.fixture
def recorders() -> tuple[list[str], dict[str, type[pipeline.Stage]]]:
    """Return a list, and subclasses of the default stages that append their names to it."""
    calls: list[str] = []

    def recorder(name: str, base: type[pipeline.Stage]) -> type[pipeline.Stage]:
        class Recorder(base):
            def __call__(self, ctx: pipeline.ExperimentContext) -> str | None:
                calls.append(name)
                return super().__call__(ctx)

        return Recorder

    defaults = [pipeline.Prepare, pipeline.Build, pipeline.Initialize, pipeline.Run]
    bases = dict(zip(pipeline.STAGES, [*defaults, pipeline.Finalize], strict=True))
    return calls, {name: recorder(name, base) for name, base in bases.items()}
