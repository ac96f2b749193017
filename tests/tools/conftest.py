"""Fixtures that train an experiment registered by a user's file and read its config."""

import argparse
import pathlib
import sys
from collections.abc import Callable

import pytest

EXPERIMENT = '''
import dataclasses

import keras
import numpy as np
import tensorflow as tf

from official_lite.core import base_task, exp_factory, task_factory
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays

X = np.random.default_rng(0).normal(3.0, 2.0, (48, 5)).astype(np.float32)
ROWS = np.arange(48, dtype=np.int32) % 7


@keras.saving.register_keras_serializable("tests_tools")
class Model(keras.Model):
    """Has no variables before it is called, with a dict, and keeps some of them in a list."""

    def __init__(self, units):
        super().__init__()
        self.units = units
        self.table = keras.layers.Embedding(7, 2)
        self.blocks = [keras.layers.BatchNormalization(), keras.layers.Dense(units)]

    def call(self, inputs, training=False):
        x = keras.ops.concatenate([inputs["x"], self.table(inputs["row"])], axis=-1)
        x = self.blocks[0](x, training=training)
        return {"logits": self.blocks[1](x), "mean": keras.ops.mean(x, axis=-1)}

    def get_config(self):
        return {"units": self.units}


@dataclasses.dataclass
class Config(cfg.TaskConfig):
    units: int = 3


@task_factory.register_task_cls(Config)
class Task(base_task.Task):
    def build_model(self):
        return Model(self.task_config.units)

    def build_inputs(self, params, input_context=None):
        training = bool(params.is_training)
        rows = {"x": X, "row": ROWS}, (X.sum(axis=1) > 15).astype(np.int32)
        return arrays.from_arrays(rows, params.global_batch_size, shuffle=training, repeat=training)

    def inference_step(self, inputs, model):
        return model({"row": inputs["row"], "x": 2.0 * inputs["x"]}, training=False)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(
            keras.losses.sparse_categorical_crossentropy(
                labels, model_outputs["logits"], from_logits=True
            )
        )


@exp_factory.register_config_factory("tests/tools")
def experiment():
    return cfg.ExperimentConfig(
        task=Config(
            train_data=cfg.DataConfig(global_batch_size=8, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=12, is_training=False),
        ),
        trainer=cfg.TrainerConfig(
            train_steps=6,
            checkpoint_interval=2,
            writers=["jsonl"],
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off"),
    )
'''


@pytest.fixture(scope="session")
def train_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that trains six steps, saves every two steps and returns the directory.

    It trains only once for each set of `path=value` overrides.
    """
    root = tmp_path_factory.mktemp("runs")
    file = root / "mine.py"
    file.write_text(EXPERIMENT)
    runs: dict[tuple[str, ...], str] = {}

    def train(*overrides: str, mode: str = "train") -> str:
        key = (mode, *overrides)
        if key in runs:
            return runs[key]
        from official_lite import pipeline
        from official_lite.tools import sources

        sets = [f"--set={each}" for each in overrides]
        given = [f"--import={file}", *sets]
        params = sources.read_params("tests/tools", parse(*given, source="tests/tools")).params
        model_dir = str(root / f"run{len(runs)}")
        with pytest.MonkeyPatch.context() as patch:
            # `run.json` records this command. The experiment is already registered.
            patch.setattr(sys, "argv", ["train.py", "--experiment", "tests/tools", *sets])
            pipeline.RunPipeline(params, mode, model_dir).run()
        runs[key] = model_dir
        return model_dir

    return train


@pytest.fixture
def trained(train_run: Callable[..., str]) -> str:
    """Return the directory of a trained run."""
    return train_run()


def parse(*arguments: str, source: str) -> argparse.Namespace:
    from official_lite.tools import sources

    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    sources.add_arguments(parser)
    return parser.parse_args([source, *arguments])


@pytest.fixture
def read_run() -> Callable[..., object]:
    """Return a function that reads the config of a run and applies command line arguments."""
    from official_lite.tools import sources

    def read(source: str | pathlib.Path, *arguments: str) -> sources.RunSource:
        return sources.read_params(str(source), parse(*arguments, source=str(source)))

    return read
