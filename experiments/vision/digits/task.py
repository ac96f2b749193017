"""The task of classifying handwritten digits."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from experiments.vision.digits import data, model
from official_lite.core import base_task

__all__ = ["DigitsTask"]


class DigitsTask(base_task.Task):
    """A task that assigns images to one of ten classes."""

    def build_model(self) -> keras.Model:
        return model.build_model(self.task_config.model, data.IMAGE_SHAPE, data.NUM_CLASSES)

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        return data.build_dataset(params, input_context)

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        loss = keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        return tf.reduce_mean(loss) + super().build_losses(labels, model_outputs, aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
