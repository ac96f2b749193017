import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.modeling import moving_statistics


def _train_on(strategy, batches, **kwargs):
    """Trains a layer on a batch for each replica; its moving mean on each of them."""
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5, **kwargs)
        model = keras.Sequential([keras.Input((1,)), layer])
    statistics = moving_statistics.MovingStatistics(tf.train.Checkpoint(model=model))

    @tf.function
    def step(batch):
        model(batch, training=True)
        statistics.average()

    values = iter(batches)
    dataset = strategy.experimental_distribute_values_from_function(
        lambda _: tf.constant(next(values))
    )
    strategy.run(step, args=(dataset,))
    results = strategy.experimental_local_results(layer.moving_mean.value)
    return [float(result.numpy()[0]) for result in results]


def test_every_replica_has_the_average(two_replicas):
    batches = [[[2.0], [2.0]], [[6.0], [6.0]]]
    assert _train_on(two_replicas, batches) == [2.0, 2.0]


def test_frozen_layers_keep_what_they_have(two_replicas):
    batches = [[[2.0], [2.0]], [[6.0], [6.0]]]
    assert _train_on(two_replicas, batches, trainable=False) == [0.0, 0.0]


def test_what_the_step_does_not_write_is_left_alone(two_replicas):
    with two_replicas.scope():
        layer = keras.layers.BatchNormalization()
        model = keras.Sequential([keras.Input((1,)), layer])
    on_replicas = two_replicas.experimental_local_results(layer.moving_mean.value)
    for number, mean in enumerate(on_replicas):
        mean.assign([number])
    statistics = moving_statistics.MovingStatistics(tf.train.Checkpoint(model=model))
    two_replicas.run(tf.function(statistics.average))
    assert [float(mean.numpy()[0]) for mean in on_replicas] == [0.0, 1.0]


def test_one_replica_has_its_own():
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    assert _train_on(strategy, [[[2.0], [4.0]]]) == [pytest.approx(1.5)]


def test_several_layers_are_one_exchange(two_replicas):
    with two_replicas.scope():
        layers = [keras.layers.BatchNormalization() for _ in range(3)]
        model = keras.Sequential([keras.Input((4,)), *layers])
    statistics = moving_statistics.MovingStatistics(tf.train.Checkpoint(model=model))

    def learn():
        model(tf.ones((2, 4)), training=True)
        statistics.average()

    @tf.function
    def step():
        two_replicas.run(learn)

    step()
    additions = [
        op for op in step.get_concrete_function().graph.get_operations() if op.type == "AddN"
    ]
    assert len(additions) == 1
    variance = layers[0].moving_variance
    first, second = (copy.numpy() for copy in variance.value.values)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, 0.99)
