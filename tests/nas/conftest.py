"""A toy search over two layer choices, each with only one option that can fit the data."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.core import base_task, base_trainer, train_lib, trainer_factory
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays

NUM_EXAMPLES = 64


@dataclasses.dataclass
class ToyConfig(nas.ArchTaskConfig):
    kind: str = "functional"
    dropout_rate: float = 0.0
    batch_norm: bool = False
    l2: float = 0.0


def operations(l2: float = 0.0) -> dict[str, Callable[[], keras.layers.Layer]]:
    penalty = keras.regularizers.L2(l2) if l2 else None
    return {
        "tanh": lambda: keras.layers.Dense(4, activation="tanh", kernel_regularizer=penalty),
        "linear": lambda: keras.layers.Dense(4, use_bias=False),
        "zero": lambda: keras.layers.Rescaling(0.0),
    }


class ToyModel(keras.Model):
    """The functional toy model as a subclass, which has no variables before its first call."""

    def __init__(self) -> None:
        super().__init__(name="toy_class")
        self.first = nas.LayerChoice(operations(), label="first")
        self.second = nas.LayerChoice(operations(), label="second")
        self.head = keras.layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.head(self.second(self.first(x)))


def toy_model(config: ToyConfig) -> keras.Model:
    if config.kind == "class":
        return ToyModel()
    inputs = x = keras.Input((4,))
    x = nas.LayerChoice(operations(config.l2), label="first")(x)
    if config.batch_norm:
        x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(config.dropout_rate, seed=3)(x)
    x = nas.LayerChoice(operations(config.l2), label="second")(x)
    if config.kind == "all":
        x = nas.Repeat(lambda index: keras.layers.Dense(4), (0, 2), label="depth")(x)
        x = nas.InputChoice(3, 2, "mean", label="inputs")([inputs, x, keras.layers.ReLU()(x)])
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(x), name="toy")


class ToyTask(base_task.Task):
    def build_model(self) -> keras.Model:
        with nas.fixed_arch(self.task_config.arch):
            return toy_model(self.task_config)

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        generator = np.random.default_rng(0)
        x = generator.normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
        y = np.tanh(x @ generator.normal(size=(4, 4)).astype(np.float32)).sum(1, keepdims=True)
        return arrays.from_arrays(
            (x, y.astype(np.float32)),
            params.global_batch_size,
            shuffle=bool(params.is_training),
            repeat=bool(params.is_training),
            input_context=input_context,
        )

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        loss = tf.reduce_mean(tf.square(model_outputs - labels))
        return loss + super().build_losses(labels, model_outputs, aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.MeanAbsoluteError(name="mae")]


def toy_experiment(name: str | None = "darts", **overrides: Any) -> cfg.ExperimentConfig:
    params = cfg.ExperimentConfig(
        task=ToyConfig(
            train_data=cfg.DataConfig(global_batch_size=8, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=16, is_training=False),
        ),
        trainer=nas.OneShotTrainerConfig(
            name=name,
            one_shot=nas.OneShotConfig(arch_learning_rate=0.05),
            train_steps=8,
            steps_per_loop=4,
            summary_interval=4,
            checkpoint_interval=4,
            validation_interval=4,
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": "sgd", "sgd": {"momentum": 0.9}},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.05}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off", execution="graph"),
    )
    params.override(overrides)
    return params


def toy_trainer(
    params: cfg.ExperimentConfig,
    *,
    strategy: tf.distribute.Strategy | None = None,
    task_cls: type[base_task.Task] = ToyTask,
    evaluate: bool = False,
) -> Any:
    keras.utils.set_random_seed(0)
    with strategy.scope() if strategy else contextlib.nullcontext():
        return trainer_factory.create_trainer(
            params, task_cls(params.task), train=True, evaluate=evaluate
        )


@pytest.fixture
def toy_task() -> type[ToyTask]:
    return ToyTask


@pytest.fixture
def experiment() -> Callable[..., cfg.ExperimentConfig]:
    """Return the function that builds the config of a trainer's experiment, with overrides."""
    return toy_experiment


@pytest.fixture
def make_trainer() -> Callable[..., base_trainer.Trainer]:
    """Return the function that builds the trainer of an experiment."""
    return toy_trainer


@pytest.fixture
def run_toy() -> Callable[..., Any]:
    """Return a function that runs an experiment with the toy task in a model directory."""

    def run(
        params: cfg.ExperimentConfig, model_dir: Any, mode: str = "train", **kwargs: Any
    ) -> Any:
        task = ToyTask(params.task)
        return train_lib.run_experiment(None, task, mode, params, str(model_dir), **kwargs)

    return run


@pytest.fixture
def make_ops() -> Callable[..., Any]:
    return operations
