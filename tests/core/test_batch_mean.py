import keras
import pytest
import tensorflow as tf

from official_lite.core import batch_mean


def test_batches_count_by_their_size() -> None:
    metric = keras.metrics.Mean()
    batch_mean.update_batch_mean(metric, 1.0, {"x": tf.zeros((3, 2))})
    batch_mean.update_batch_mean(metric, 5.0, {"x": tf.zeros((1, 2))})
    assert float(metric.result()) == pytest.approx(2.0)


def test_mean_over_nothing_counts_nothing() -> None:
    metric = keras.metrics.Mean()
    batch_mean.update_batch_mean(metric, 1.0, tf.zeros((3,)))
    batch_mean.update_batch_mean(metric, float("nan"), tf.zeros((0,)))
    assert float(metric.result()) == 1.0


def test_inputs_without_a_batch_dimension_count_alike() -> None:
    metric = keras.metrics.Mean()
    batch_mean.update_batch_mean(metric, 1.0, tf.constant(7.0))
    batch_mean.update_batch_mean(metric, 2.0, ())
    assert float(metric.result()) == pytest.approx(1.5)
