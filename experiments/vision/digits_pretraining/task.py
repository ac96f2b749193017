"""The task of classifying digits, or of pre-training without labels."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from experiments.vision.digits import data as digits
from experiments.vision.digits import task
from experiments.vision.digits_pretraining import data, model

__all__ = ["FewLabelsTask"]


class FewLabelsTask(task.DigitsTask):
    """The digits task, or, depending on the config, the task of reconstructing the image."""

    def build_model(self) -> keras.Model:
        num_outputs = math.prod(digits.IMAGE_SHAPE) if self._learns_images else digits.NUM_CLASSES
        return model.build_model(self.task_config.model, digits.IMAGE_SHAPE, num_outputs)

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        return data.build_dataset(params, self.task_config.objective, input_context)

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        if not self._learns_images:
            return super().build_losses(labels, model_outputs, aux_losses)
        return tf.reduce_mean(tf.square(labels - model_outputs))

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        if not self._learns_images:
            return super().build_metrics(training)
        return [keras.metrics.RootMeanSquaredError(name="error_of_a_pixel")]

    @property
    def _learns_images(self) -> bool:
        return self.task_config.objective == "image"
