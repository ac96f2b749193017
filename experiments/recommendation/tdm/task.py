"""The task of recommending the next item by a search down a tree."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from experiments import known_number
from experiments.recommendation.tdm import configs, data, model
from official_lite.core import base_task

__all__ = ["TdmTask"]


class TdmTask(base_task.Task):
    """A task that predicts likely next items from a history of items."""

    def build_model(self) -> keras.Model:
        config = self.task_config
        return model.TreeMatcher(config.model, config.num_topics * data.ITEMS_PER_TOPIC)

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        return data.build_dataset(params, self.task_config.num_topics, input_context)

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        del labels
        # In the logits, the node on the path to the target is the first one of each level.
        path, others = model_outputs[..., :1], model_outputs[..., 1:]
        is_on_path = tf.concat([tf.ones_like(path), tf.zeros_like(others)], axis=-1)
        loss = keras.losses.binary_crossentropy(is_on_path, model_outputs, from_logits=True)
        return tf.reduce_mean(loss) + super().build_losses(None, model_outputs, aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        if training:
            return []
        config = self.task_config
        popularity = data.popularity_recall(
            self._histories(config.train_data),
            self._histories(config.validation_data),
            config.num_recommended,
        )
        return [
            _Recall(name="recall"),
            known_number.KnownNumber(popularity, name="popularity_recall"),
        ]

    def validation_step(
        self,
        inputs: Any,
        model: keras.Model,
        metrics: Sequence[keras.metrics.Metric] | None = None,
    ) -> dict[str, Any]:
        features, labels = inputs
        self.process_metrics(metrics or [], labels, self.inference_step(features, model))
        return {}

    def inference_step(self, inputs: Any, model: keras.Model) -> tf.Tensor:
        config = self.task_config
        return model.recommend(inputs["history"], config.num_recommended, config.model.beam_width)

    def _histories(self, params: configs.TdmDataConfig) -> data.Histories:
        return data.load_split(params.split, params.num_generated, self.task_config.num_topics)


class _Recall(keras.metrics.Mean):
    """The share of examples whose next item is among the recommended items."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        is_found = tf.reduce_any(y_pred == y_true[:, tf.newaxis], axis=1)
        super().update_state(tf.cast(is_found, tf.float32), sample_weight)
