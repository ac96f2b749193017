import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.core import step_metrics
from official_lite.data import tf_data_options
from official_lite.orbit import utils


def test_batches_count_by_their_size() -> None:
    metric = step_metrics.BatchMean()
    metric.update_state(1.0, batch={"x": tf.zeros((3, 2))})
    metric.update_state(5.0, batch={"x": tf.zeros((1, 2))})
    assert float(metric.result()) == pytest.approx(2.0)


def test_mean_over_nothing_counts_nothing() -> None:
    metric = step_metrics.BatchMean()
    metric.update_state(1.0, batch=tf.zeros((3,)))
    metric.update_state(float("nan"), batch=tf.zeros((0,)))
    assert float(metric.result()) == 1.0


def test_batches_without_a_batch_dimension_count_alike() -> None:
    metric = step_metrics.BatchMean()
    metric.update_state(1.0, batch=tf.constant(7.0))
    metric.update_state(2.0, batch=())
    assert float(metric.result()) == pytest.approx(1.5)


@pytest.mark.parametrize("weights", [None, [1.0, 3.0]])
def test_values_that_are_no_means_count_as_in_keras(weights: list[float] | None) -> None:
    ours, theirs = step_metrics.BatchMean(), keras.metrics.Mean()
    for metric in (ours, theirs):
        metric.update_state([1.0, 2.0], weights)
        metric.update_state(6.0, 2.0)
    assert float(ours.result()) == float(theirs.result())


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_batch_of_the_step_is_found(
    two_replicas: tf.distribute.Strategy, replicas: int, compiled: bool
) -> None:
    strategy = two_replicas if replicas == 2 else tf.distribute.get_strategy()
    values = np.arange(11, dtype=np.float32)
    dataset = tf.data.Dataset.from_tensor_slices({"x": values}).batch(4)
    with strategy.scope():
        metric = step_metrics.BatchMean()

    def step(iterator):
        def replica_step(batch):
            metric.update_state(tf.reduce_mean(batch["x"]))

        strategy.run(replica_step, args=(next(iterator),))

    step = utils.guard_step(step)
    dataset = tf_data_options.without_idle_autotuner(dataset)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    utils.create_loop_fn(tf.function(step) if compiled else step)(iterator, -1)
    assert float(metric.result()) == pytest.approx(values.mean())
