"""The loss and metrics of click models."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from experiments import known_number
from experiments.recommendation.criteo import dataset, generator
from official_lite.core import base_task

__all__ = ["CriteoTask"]

# With thresholds in steps of 0.001, the AUC differs from its exact value by at most 1e-4.
_NUM_THRESHOLDS = 1001


class CriteoTask(base_task.Task):
    """A task that predicts the logit of a click on an impression. A subclass has `build_model`."""

    @property
    def num_rows(self) -> int:
        """Return the number of rows of the single table for all categories."""
        return generator.NUM_CATEGORIES * self.task_config.table_rows

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        return dataset.build_dataset(params, self.task_config.table_rows, input_context)

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        loss = keras.losses.binary_crossentropy(labels, model_outputs, from_logits=True)
        return tf.reduce_mean(loss) + super().build_losses(labels, model_outputs, aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        if training:
            return []
        metrics: list[keras.metrics.Metric] = [
            keras.metrics.AUC(_NUM_THRESHOLDS, from_logits=True, name="auc")
        ]
        best = dataset.best_possible_auc(self.task_config.validation_data)
        if best is not None:
            metrics.append(known_number.KnownNumber(best, "best_possible_auc"))
        return metrics
