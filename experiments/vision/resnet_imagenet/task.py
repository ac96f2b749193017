"""The task of classifying ImageNet."""

from typing import Any

import keras
import tensorflow as tf

from experiments.vision.classification import task
from experiments.vision.resnet_imagenet import data, model

__all__ = ["ImageNetTask"]


class ImageNetTask(task.ClassificationTask):
    """A task that assigns photographs to classes."""

    def build_model(self) -> keras.Model:
        built = model.build_model(self.task_config.model)
        task.decay_kernels(built, self.task_config.losses.l2_weight_decay)
        return built

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        return data.build_dataset(params, self.task_config.model.input_size, input_context)
