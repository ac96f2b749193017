"""The task of classifying CIFAR-10."""

from typing import Any

import keras
import tensorflow as tf

from experiments.vision.classification import task
from experiments.vision.resnet_cifar10 import data, model

__all__ = ["Cifar10Task"]


class Cifar10Task(task.ClassificationTask):
    """A task that assigns images of 32×32 pixels to one of ten classes."""

    def build_model(self) -> keras.Model:
        config = self.task_config
        built = model.build_model(config.model, data.IMAGE_SHAPE, data.NUM_CLASSES)
        task.decay_kernels(built, config.losses.l2_weight_decay)
        return built

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        return data.build_dataset(params, input_context)
