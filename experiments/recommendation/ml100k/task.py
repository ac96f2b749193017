"""The tasks of recommending movies, which share their evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.recommendation.ml100k import data, model, ranking
from official_lite.core import base_task

__all__ = ["BprTask", "RecommendationTask", "SasRecTask", "TwoTowerTask"]


class RecommendationTask(base_task.Task):
    """A task that recommends to each user the items with the highest scores among all new ones.

    A subclass provides the training data, the loss, and a model with a method `score_all`.
    """

    @property
    def splits(self) -> Mapping[str, data.Ratings]:
        """Return the ratings of each split."""
        return data.split_at_random(self.task_config.input_path, self.task_config.split_seed)

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        if params.is_training:
            return self.build_training_inputs(params, input_context)
        return self.build_evaluation_inputs(params, input_context)

    def build_training_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None
    ) -> tf.data.Dataset:
        """Build the dataset of the training data."""
        raise NotImplementedError

    def build_evaluation_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None
    ) -> tf.data.Dataset:
        """Build the dataset of the validation or the test data."""
        return data.build_evaluation(params, self.splits, input_context)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [] if training else ranking.build_metrics()

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
        count = self.task_config.num_recommended
        return ranking.recommend(model.score_all(inputs), inputs["is_known"], count)


class BprTask(RecommendationTask):
    """A task that learns to rank the items rated by a user above all others."""

    def build_model(self) -> keras.Model:
        ratings = data.load_ratings(self.task_config.input_path)
        return model.MatrixFactorization(
            self.task_config.model, len(ratings.user_ids), len(ratings.item_ids)
        )

    def build_training_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None
    ) -> tf.data.Dataset:
        return data.build_pairs(params, self.splits[params.split.lower()], input_context)

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        del labels
        rated, unrated = model_outputs[:, 0], model_outputs[:, 1]
        loss = tf.reduce_mean(tf.nn.softplus(unrated - rated))
        return loss + super().build_losses(None, model_outputs, aux_losses)


class TwoTowerTask(RecommendationTask):
    """A task that finds the item of each rating among all items of the batch.

    Popular items occur in batches more often, for which their scores are corrected, as in
    https://research.google/pubs/pub48840. Other items that the user has rated are ignored.
    """

    def build_model(self) -> keras.Model:
        directory = self.task_config.input_path
        return model.TwoTower(
            self.task_config.model,
            data.load_user_features(directory),
            data.load_item_features(directory),
        )

    def build_training_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None
    ) -> tf.data.Dataset:
        return data.build_positives(params, self.splits[params.split.lower()], input_context)

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        is_rated = data.multi_hot(self.splits["train"])
        popularity = is_rated.sum(axis=0).astype(np.float32)
        users, items = labels["user"], labels["item"]
        rows = tf.range(tf.shape(users)[0])
        is_positive = tf.gather(tf.gather(is_rated, users), items, axis=1)
        is_other = is_positive & (rows[:, tf.newaxis] != rows)
        logits = model_outputs - tf.math.log(tf.gather(popularity, items))
        logits = tf.where(is_other, logits.dtype.min, logits)
        loss = keras.losses.sparse_categorical_crossentropy(rows, logits, from_logits=True)
        return tf.reduce_mean(loss) + super().build_losses(labels, model_outputs, aux_losses)


class SasRecTask(RecommendationTask):
    """A task that predicts the next item of each user at all positions of a window."""

    @property
    def splits(self) -> Mapping[str, data.Ratings]:
        return data.split_by_time(self.task_config.input_path)

    def build_model(self) -> keras.Model:
        ratings = data.load_ratings(self.task_config.input_path)
        return model.SelfAttentiveModel(self.task_config.model, len(ratings.item_ids))

    def build_training_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None
    ) -> tf.data.Dataset:
        length = self.task_config.model.seq_length
        return data.build_windows(params, self.splits[params.split.lower()], length, input_context)

    def build_evaluation_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None
    ) -> tf.data.Dataset:
        length = self.task_config.model.seq_length
        return data.build_next_items(params, self.splits, length, input_context)

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        weights = tf.cast(labels > 0, tf.float32)
        loss = keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        mean = tf.math.divide_no_nan(tf.reduce_sum(weights * loss), tf.reduce_sum(weights))
        return mean + super().build_losses(labels, model_outputs, aux_losses)
