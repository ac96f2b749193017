"""`vision/digits_mlp` in the Model Garden, with a typical `train.py`."""

import dataclasses
import os
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from absl import app, flags
from official.common import distribute_utils
from official.common import flags as tfm_flags
from official.core import base_task, exp_factory, task_factory, train_lib, train_utils
from official.core import config_definitions as cfg
from official.modeling import optimization
from sklearn import datasets

FLAGS = flags.FLAGS
BATCH_SIZE = 64
TRAIN_STEPS = 600


@dataclasses.dataclass
class DigitsConfig(cfg.TaskConfig):
    """The config of digit classification."""

    train_data: cfg.DataConfig = dataclasses.field(
        default_factory=lambda: cfg.DataConfig(is_training=True, global_batch_size=BATCH_SIZE)
    )
    validation_data: cfg.DataConfig = dataclasses.field(
        default_factory=lambda: cfg.DataConfig(is_training=False, global_batch_size=120)
    )


@task_factory.register_task_cls(DigitsConfig)
class DigitsTask(base_task.Task):
    """A task that assigns images to one of ten classes."""

    def build_model(self) -> tf_keras.Model:
        inputs = x = tf_keras.Input((8, 8, 1))
        x = tf_keras.layers.Flatten()(x)
        for _ in range(2):
            x = tf_keras.layers.Dense(64, activation="relu")(x)
        return tf_keras.Model(inputs, tf_keras.layers.Dense(10)(x))

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        digits = datasets.load_digits()
        images = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
        labels = digits.target.astype(np.int32)
        is_validation = np.arange(len(labels)) % 5 == 0
        chosen = ~is_validation if params.is_training else is_validation
        dataset = tf.data.Dataset.from_tensor_slices((images[chosen], labels[chosen]))
        if params.is_training:
            dataset = dataset.shuffle(int(chosen.sum())).repeat()
        return dataset.batch(params.global_batch_size).prefetch(tf.data.AUTOTUNE)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(
            tf_keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        )

    def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
        return [tf_keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


@exp_factory.register_config_factory("vision/digits_mlp")
def digits_mlp() -> cfg.ExperimentConfig:
    return cfg.ExperimentConfig(
        task=DigitsConfig(),
        trainer=cfg.TrainerConfig(
            train_steps=TRAIN_STEPS,
            steps_per_loop=100,
            summary_interval=100,
            checkpoint_interval=500,
            validation_interval=300,
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.01}},
                    "learning_rate": {
                        "type": "cosine",
                        "cosine": {"initial_learning_rate": 3e-3, "decay_steps": TRAIN_STEPS},
                    },
                    "warmup": {"type": "linear", "linear": {"warmup_steps": 50}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device"),
    )


def end_at_first_step(_: Any) -> None:
    print("first step", flush=True)
    os._exit(0)


def main(_: list[str]) -> None:
    params = train_utils.parse_configuration(FLAGS)
    train_utils.serialize_config(params, FLAGS.model_dir)
    strategy = distribute_utils.get_distribution_strategy(
        distribution_strategy=params.runtime.distribution_strategy,
        num_gpus=params.runtime.num_gpus,
    )
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=FLAGS.model_dir)
    train_lib.run_experiment(
        strategy, task, FLAGS.mode, params, FLAGS.model_dir, train_actions=[end_at_first_step]
    )


if __name__ == "__main__":
    tfm_flags.define_flags()
    app.run(main)
