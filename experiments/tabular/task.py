"""The task of classifying the rows of a table."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.tabular import data, model
from official_lite.core import base_task

__all__ = ["BreastCancerTask", "TableTask"]


class TableTask(base_task.Task):
    """A task that predicts the class in one column of a CSV file from the other columns."""

    def read_columns(self) -> data.Columns:
        """Return the cells of the table by the names of their columns."""
        return data.read_csv(self.task_config.input_path)

    @functools.cached_property
    def _table(self) -> data.Table:
        return data.build_table(self.read_columns(), self.task_config)

    @property
    def _rows(self) -> Mapping[str, np.ndarray]:
        return data.split_rows(len(self._table.labels), self.task_config)

    def build_model(self) -> keras.Model:
        table, training = self._table, self._rows["train"]
        columns = table.categories[training].T
        sizes = [len(data.vocabulary_of(column)) for column in columns]
        config = self.task_config.model
        return model.build_model(config, table.numbers[training], sizes, len(table.class_names))

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        return data.build_dataset(self._table, self._rows, params, input_context)

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        loss = keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        return tf.reduce_mean(loss) + super().build_losses(labels, model_outputs, aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        return [accuracy, _BinaryAuc()] if len(self._table.class_names) == 2 else [accuracy]


class BreastCancerTask(TableTask):
    """A task that tells benign from malignant tumors."""

    def read_columns(self) -> data.Columns:
        return data.load_breast_cancer()


class _BinaryAuc(keras.metrics.AUC):
    """The area under the ROC curve for two classes, computed from the logits of both."""

    def __init__(self) -> None:
        super().__init__(num_thresholds=1000, name="auc")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        probabilities = keras.ops.softmax(y_pred)[:, 1]
        super().update_state(y_true, probabilities, sample_weight)
