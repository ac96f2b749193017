"""The losses and metrics of a classification task."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.core import base_task

__all__ = ["ClassificationTask", "decay_kernels"]


class ClassificationTask(base_task.Task):
    """A classification task. A subclass provides the images and a model that returns logits."""

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        smoothing = self.task_config.losses.label_smoothing
        # The labels are not one-hot encoded, because that would silently map an out-of-range label
        # to zeros.
        loss = keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        if smoothing:
            of_all_classes = -tf.reduce_mean(tf.nn.log_softmax(model_outputs), axis=-1)
            loss = (1 - smoothing) * loss + smoothing * of_all_classes
        return tf.reduce_mean(loss) + super().build_losses(labels, model_outputs, aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        k = self.task_config.top_k
        among_best = keras.metrics.SparseTopKCategoricalAccuracy(k, name=f"top_{k}_accuracy")
        accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        return [accuracy, among_best] if k else [accuracy]


def decay_kernels(model: keras.Model, rate: float) -> None:
    """Add `rate` times half the sum of the squares of all kernels to the model's losses.

    Biases and the weights of normalization layers do not decay.
    """
    regularizer = keras.regularizers.L2(rate / 2)
    for weight in model.trainable_weights if rate else []:
        # `SeparableConv2D` has a `depthwise_kernel` and a `pointwise_kernel`.
        if weight.path.endswith("kernel"):
            weight.regularizer = regularizer
