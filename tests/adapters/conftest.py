"""A toy task with a base to adapt: token rows to numbers, by an embedding and dense layers."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import warm_start
from official_lite.core import base_task, train_lib
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays


@dataclasses.dataclass
class RowsConfig(cfg.TaskConfig):
    slope: float = 1.0
    dropout_rate: float = 0.1


class RowsModel(keras.Model):
    """Has no variables before its first call, and keeps layers in a list."""

    def __init__(self, dropout_rate: float = 0.0) -> None:
        super().__init__(name="rows")
        self.table = keras.layers.Embedding(7, 6, name="table")
        self.blocks = [keras.layers.Dense(6, "tanh", name=f"block_{i}") for i in range(2)]
        self.norm = keras.layers.BatchNormalization(name="norm")
        self.dropout = keras.layers.Dropout(dropout_rate)
        self.head = keras.layers.Dense(1, name="head")

    def call(self, rows: Any, training: bool = False) -> Any:
        x = keras.ops.mean(self.table(rows), axis=1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.dropout(self.norm(x, training=training), training=training))


class RowsTask(base_task.Task):
    def build_model(self) -> keras.Model:
        return RowsModel(self.task_config.dropout_rate)

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        rows = tf.random.stateless_uniform((64, 4), (1, 2), 0, 7, tf.int32)
        labels = self.task_config.slope * tf.cast(rows[:, :1], tf.float32)
        training = bool(params.is_training)
        data = (rows.numpy(), labels.numpy())
        return arrays.from_arrays(
            data,
            params.global_batch_size,
            shuffle=training,
            repeat=training,
            input_context=input_context,
        )

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(tf.square(model_outputs - labels))


def rows_experiment(**overrides: Any) -> cfg.ExperimentConfig:
    params = cfg.ExperimentConfig(
        task=RowsConfig(
            train_data=cfg.DataConfig(global_batch_size=8, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=8, is_training=False),
        ),
        trainer=cfg.TrainerConfig(
            train_steps=8,
            steps_per_loop=4,
            checkpoint_interval=4,
            validation_interval=8,
            writers=[],
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off", execution="graph"),
    )
    params.override(overrides)
    return params


def train(params: cfg.ExperimentConfig, model_dir: pathlib.Path, strategy: Any = None) -> Any:
    """Train, and return the model."""
    keras.utils.set_random_seed(params.runtime.seed)
    with (strategy or tf.distribute.get_strategy()).scope():
        task = RowsTask(params.task)
    model, _ = train_lib.run_experiment(strategy, task, "train", params, str(model_dir))
    return model


ROWS = np.arange(12, dtype=np.int32).reshape(3, 4) % 7


def load_base(base: str) -> keras.Model:
    """Return a model with the weights of the base."""
    model = RowsModel()
    model(ROWS)
    warm_start.load_weights(model, base)
    return model


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a trained base."""
    directory = tmp_path_factory.mktemp("base")
    train(rows_experiment(), directory)
    return str(directory)


@pytest.fixture(scope="session")
def adapted(base: str) -> Callable[..., cfg.ExperimentConfig]:
    """Makes the experiment that adapts the base."""

    def make(adapters: dict[str, Any] | None = None, **overrides: Any) -> cfg.ExperimentConfig:
        params = rows_experiment(
            task={
                "init_checkpoint": base,
                "slope": -1.0,
                "adapters": {"rank": 2, **(adapters or {})},
            }
        )
        params.override(overrides)
        return params

    return make


@pytest.fixture(scope="session")
def run(
    adapted: Callable[..., cfg.ExperimentConfig], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, keras.Model]:
    """The directory of a run that has adapted the base, and its model."""
    directory = tmp_path_factory.mktemp("run")
    return str(directory), train(adapted({"alpha": 3.0, "trainable": ["norm/"]}), directory)
