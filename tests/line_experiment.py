"""A toy task that fits a line to points on a line."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite.core import base_task, base_trainer
from official_lite.core import config_definitions as cfg

NUM_EXAMPLES = 32
BATCH_SIZE = 8


@dataclasses.dataclass
class LineConfig(cfg.TaskConfig):
    slope: float = 3.0
    is_built: bool = True
    dropout_rate: float = 0.0


class LineModel(keras.Model):
    """A model that has no variables before its first call."""

    def __init__(self, dropout_rate: float = 0.0) -> None:
        super().__init__(name="line")
        self.dropout = keras.layers.Dropout(dropout_rate, seed=7)
        self.dense = keras.layers.Dense(1, kernel_initializer="zeros")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(self.dropout(x, training=training))


class LineTask(base_task.Task):
    def build_model(self) -> keras.Model:
        model = LineModel(self.task_config.dropout_rate)
        if self.task_config.is_built:
            model(keras.Input((2,)))
        return model

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        x = tf.random.stateless_normal((NUM_EXAMPLES, 2), (1, 2))
        y = self.task_config.slope * x[:, :1] + 1.0
        batch_size = params.global_batch_size
        if input_context:
            batch_size = input_context.get_per_replica_batch_size(batch_size)
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        loss = tf.reduce_mean(tf.square(tf.cast(model_outputs, tf.float32) - labels))
        return loss + super().build_losses(labels, model_outputs, aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.MeanAbsoluteError(name="mae")]


def short_experiment(
    task_config_cls: type[cfg.TaskConfig], **overrides: Any
) -> cfg.ExperimentConfig:
    """Build the config of an experiment that trains the task for a few steps, with overrides."""
    params = cfg.ExperimentConfig(
        task=task_config_cls(
            train_data=cfg.DataConfig(global_batch_size=BATCH_SIZE, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=BATCH_SIZE, is_training=False),
        ),
        trainer=cfg.TrainerConfig(
            train_steps=8,
            steps_per_loop=4,
            checkpoint_interval=4,
            validation_interval=4,
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": "sgd"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off"),
    )
    params.override(overrides)
    return params


def line_experiment(**overrides: Any) -> cfg.ExperimentConfig:
    params = short_experiment(LineConfig, trainer={"summary_interval": 4})
    params.override(overrides)
    return params


@pytest.fixture
def experiment() -> Callable[..., cfg.ExperimentConfig]:
    """Return the function that builds the experiment config, with overrides."""
    return line_experiment


@pytest.fixture
def make_task() -> Callable[[cfg.ExperimentConfig], LineTask]:
    return lambda params, cls=LineTask: cls(params.task)


@pytest.fixture
def make_trainer() -> Callable[..., base_trainer.Trainer]:
    """Return a function that builds a trainer in the current strategy scope."""

    def make(
        params: cfg.ExperimentConfig,
        cls: type[base_trainer.Trainer] = base_trainer.Trainer,
        task_cls: type[LineTask] = LineTask,
        **kwargs: Any,
    ) -> base_trainer.Trainer:
        keras.utils.set_random_seed(0)
        task = task_cls(params.task)
        optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
        return cls(params, task, task.build_model(), optimizer, **kwargs)

    return make
