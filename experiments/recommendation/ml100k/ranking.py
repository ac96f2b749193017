"""Metrics of recommended items, as RecBole defines them: the mean over users at a cutoff k."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["RankingMetric", "build_metrics", "recommend"]


def recommend(scores: tf.Tensor, is_known: tf.Tensor, count: int) -> tf.Tensor:
    """Return the items with the highest scores, the best one first.

    Args:
        scores: The scores of all items, of shape (batch, items).
        is_known: Whether an item must not be recommended, bool of the same shape.
        count: The number of items to recommend.

    Returns:
        Items, int32 of shape (batch, count).
    """
    lowest = tf.constant(scores.dtype.min, scores.dtype)
    return tf.math.top_k(tf.where(is_known, lowest, scores), count).indices


class RankingMetric(keras.metrics.Mean):
    """The mean over users of a function of their hits among the recommended items.

    Args:
        function: Maps hits, float32 of shape (batch, k) with 1 for each wanted item, the best item
            first, and the number of wanted items of each user, to one value per user.
        name: The name of the metric.
    """

    def __init__(self, function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], name: str) -> None:
        super().__init__(name=name)
        self._function = function

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add the users of a batch.

        Args:
            y_true: Whether an item is wanted, bool of shape (batch, items).
            y_pred: The recommended items, of shape (batch, k).
            sample_weight: The weights of the users.
        """
        hits = tf.cast(tf.gather(y_true, y_pred, batch_dims=1), tf.float32)
        num_wanted = tf.reduce_sum(tf.cast(y_true, tf.float32), axis=1)
        super().update_state(self._function(hits, num_wanted), sample_weight)


def build_metrics() -> list[keras.metrics.Metric]:
    """Build the five metrics that RecBole reports, by its names."""
    return [
        RankingMetric(_recall, "recall"),
        RankingMetric(_mrr, "mrr"),
        RankingMetric(_ndcg, "ndcg"),
        RankingMetric(_hit, "hit"),
        RankingMetric(_precision, "precision"),
    ]


def _recall(hits: tf.Tensor, num_wanted: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(hits, axis=1) / num_wanted


def _mrr(hits: tf.Tensor, num_wanted: tf.Tensor) -> tf.Tensor:
    del num_wanted
    return tf.reduce_max(hits / np.arange(1, hits.shape[1] + 1, dtype=np.float32), axis=1)


def _ndcg(hits: tf.Tensor, num_wanted: tf.Tensor) -> tf.Tensor:
    count = hits.shape[1]
    discounts = (1 / np.log2(np.arange(2, count + 2))).astype(np.float32)
    best = tf.gather(np.cumsum(discounts), tf.minimum(tf.cast(num_wanted, tf.int32), count) - 1)
    return tf.linalg.matvec(hits, discounts) / best


def _hit(hits: tf.Tensor, num_wanted: tf.Tensor) -> tf.Tensor:
    del num_wanted
    return tf.reduce_max(hits, axis=1)


def _precision(hits: tf.Tensor, num_wanted: tf.Tensor) -> tf.Tensor:
    del num_wanted
    return tf.reduce_mean(hits, axis=1)
