"""What models of clicks learn from, and how they are judged."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from experiments import known_number
from experiments.recommendation.criteo import dataset, generator
from official_lite.core import base_task

__all__ = ["CriteoTask"]

# In steps of a thousandth, the curve's area is that of the curve of all examples to 1e-4.
_NUM_THRESHOLDS = 1001


class CriteoTask(base_task.Task):
    """From an impression to the logit of a click on it. A subclass has `build_model`."""

    @property
    def num_rows(self) -> int:
        """Rows of the one table with the rows of all categories."""
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
