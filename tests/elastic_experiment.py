"""An experiment with everything that could depend on the number of replicas."""

import json
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.common import preemption
from official_lite.core import base_task, exp_factory, task_factory
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays, position
from tests import waiting


class ElasticConfig(cfg.TaskConfig):
    """The config class that selects `ElasticTask` in the registry."""


@task_factory.register_task_cls(ElasticConfig)
class ElasticTask(base_task.Task):
    def build_model(self) -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                keras.layers.Conv2D(8, 3, use_bias=False),
                keras.layers.BatchNormalization(),
                keras.layers.ReLU(),
                keras.layers.Dropout(0.3),
                keras.layers.Flatten(),
                keras.layers.Dense(10, kernel_regularizer="l2"),
            ]
        )

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        numbers = np.random.default_rng(0)
        # 125 is not a multiple of the batch size, so an evaluation ends with partial batches.
        images = numbers.normal(size=(125, 8, 8, 3)).astype(np.float32)
        labels = numbers.integers(0, 10, 125)
        is_training = bool(params.is_training)
        dataset = arrays.from_arrays(
            (images, labels),
            params.global_batch_size,
            shuffle=is_training,
            repeat=is_training,
            drop_remainder=is_training,
            input_context=input_context,
        )
        if not is_training:
            return dataset
        pipeline = input_context.input_pipeline_id if input_context else 0

        def add_noise(number: tf.Tensor, batch: Any) -> Any:
            images, labels = batch
            seed = tf.stack([number, pipeline])
            return images + 0.1 * tf.random.stateless_normal(tf.shape(images), seed), labels

        return position.enumerate_batches(dataset, input_context).map(add_noise)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        losses = keras.losses.sparse_categorical_crossentropy(
            labels, model_outputs, from_logits=True
        )
        loss = tf.reduce_mean(losses)
        telemetry.put_scalar("largest_loss", tf.reduce_max(losses))
        return loss + super().build_losses(labels, model_outputs, aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
            keras.metrics.SparseTopKCategoricalAccuracy(3, name="top_3"),
        ]


class LoneWorkerWaits(orbit.Hook):
    """A hook that makes a lone worker wait after a checkpoint until it is asked to stop."""

    def on_checkpoint(self, path: str) -> None:
        workers = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {}).get("worker", [])
        if len(workers) < 2:
            waiting.wait_for(preemption.requested)


@exp_factory.register_config_factory("tests/elastic")
def elastic() -> cfg.ExperimentConfig:
    optimizer = {
        "optimizer": {"type": "adamw", "adamw": {"global_clipnorm": 1.0}},
        "learning_rate": {
            "type": "cosine",
            "cosine": {"initial_learning_rate": 0.003, "decay_steps": 30},
        },
        "ema": {"average_decay": 0.9},
    }
    return cfg.ExperimentConfig(
        task=ElasticConfig(
            train_data=cfg.DataConfig(global_batch_size=24, is_training=True),
            validation_data=cfg.DataConfig(
                global_batch_size=24, is_training=False, drop_remainder=False
            ),
        ),
        trainer=cfg.TrainerConfig(
            train_steps=30,
            steps_per_loop=5,
            checkpoint_interval=10,
            validation_interval=10,
            grad_accum_steps=2,
            virtual_replicas=4,
            best_checkpoint_export_subdir="best",
            best_checkpoint_eval_metric="accuracy",
            optimizer_config=cfg.OptimizationConfig(optimizer),
            hooks=["gradient_norm"],
            writers=["jsonl"],
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off", execution="graph"),
    )
