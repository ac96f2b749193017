"""Clicks on a line whose slope grows from day to day."""

import dataclasses

import keras
import tensorflow as tf

from official_lite.core import base_task, exp_factory
from official_lite.core import config_definitions as cfg
from official_lite.modeling import optimization
from official_lite.modeling.hyperparams import base_config


@dataclasses.dataclass
class ClicksConfig(cfg.TaskConfig):
    """The config of a task that reads files with lines `position,clicks`."""


@base_config.bind(ClicksConfig)
class ClicksTask(base_task.Task):
    def build_model(self):
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        # There is no training data before the first day.
        files = [params.input_path] if params.input_path else []
        dataset = tf.data.experimental.CsvDataset(files, [tf.float32, tf.float32])
        return dataset.map(lambda x, y: (x[None], y[None])).batch(params.global_batch_size)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(tf.square(model_outputs - labels))


@exp_factory.register_config_factory("clicks")
def clicks():
    data = cfg.DataConfig(global_batch_size=8)
    optimizer = {
        "optimizer": {"type": "sgd"},
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.2}},
    }
    return cfg.ExperimentConfig(
        task=ClicksConfig(train_data=data, validation_data=data),
        trainer=cfg.TrainerConfig(
            train_steps=60,
            steps_per_epoch=20,
            max_to_keep=10,
            optimizer_config=optimization.OptimizationConfig(optimizer),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device"),
    )
