"""A toy task for compression: which quarter of a small image is bright."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite.core import base_task, train_lib
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays

layers = keras.layers


def functional(normalize: bool = False) -> keras.Model:
    """A network with a residual connection, whose layers have the names that Keras gives them."""
    inputs = keras.Input((8, 8, 1), name="image")
    x = layers.Conv2D(8, 3, padding="same", activation=None if normalize else "relu")(inputs)
    if normalize:
        x = layers.ReLU()(layers.BatchNormalization()(x))
    y = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    if normalize:
        y = layers.BatchNormalization()(y)
    x = keras.ops.relu(x + y)
    x = layers.Flatten()(layers.MaxPooling2D(4)(x))
    return keras.Model(inputs, layers.Dense(4)(layers.Dense(8, activation="relu")(x)))


class QuarterTask(base_task.Task):
    """Classifies images of 8 × 8 pixels."""

    model_fn: Callable[[], keras.Model] = staticmethod(functional)

    def build_model(self) -> keras.Model:
        return self.model_fn()

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 4, 64).astype(np.int32)
        images = rng.normal(0.0, 0.3, (64, 8, 8, 1)).astype(np.float32)
        for image, label in zip(images, labels, strict=True):
            row, column = divmod(label, 2)
            image[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] += 1.0
        return arrays.from_arrays(
            (images, labels),
            params.global_batch_size,
            shuffle=params.is_training,
            repeat=params.is_training,
            input_context=input_context,
        )

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        losses = keras.losses.sparse_categorical_crossentropy(
            labels, model_outputs, from_logits=True
        )
        return tf.reduce_mean(losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def train(
    model_dir: Any,
    *,
    mode: str = "train",
    steps: int = 8,
    strategy: tf.distribute.Strategy | None = None,
    task_cls: type[QuarterTask] = QuarterTask,
    **overrides: Any,
) -> keras.Model:
    """Trains the task in a directory, and returns the model."""
    params = cfg.ExperimentConfig(
        task=cfg.TaskConfig(
            train_data=cfg.DataConfig(global_batch_size=16, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=16, is_training=False),
            compression={"quantization": {}},
        ),
        trainer=cfg.TrainerConfig(
            train_steps=steps,
            steps_per_loop=2,
            checkpoint_interval=2,
            writers=["jsonl"],
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
    keras.utils.set_random_seed(params.runtime.seed)
    model, _ = train_lib.run_experiment(
        strategy, task_cls(params.task), mode, params, str(model_dir)
    )
    return model
