"""The task of classifying MNIST-1D."""

from typing import Any

import keras
import tensorflow as tf

from experiments.sequence.mnist1d import data, model
from experiments.vision.classification import task

__all__ = ["Mnist1dTask"]


class Mnist1dTask(task.ClassificationTask):
    """A task that assigns curves of 40 points to one of ten classes."""

    def build_model(self) -> keras.Model:
        config = self.task_config
        built = model.build_model(config.model, data.NUM_POINTS, data.NUM_CLASSES)
        task.decay_kernels(built, config.losses.l2_weight_decay)
        return built

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        return data.build_dataset(self.task_config.input_path, params, input_context)
