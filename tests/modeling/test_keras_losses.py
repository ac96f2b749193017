import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.modeling import distributed_gradients


def _loss_on_each_replica(strategy: tf.distribute.Strategy, *, undivided: bool) -> list[float]:
    def step() -> tf.Tensor:
        loss = keras.losses.MeanSquaredError()
        if not undivided:
            return loss([[0.0], [0.0]], [[1.0], [3.0]])
        with distributed_gradients.undivided_losses():
            return loss([[0.0], [0.0]], [[1.0], [3.0]])

    values = strategy.run(tf.function(step))
    return [float(value) for value in strategy.experimental_local_results(values)]


def test_loss_is_the_mean_of_a_replica_and_only_where_that_was_asked_for(two_replicas) -> None:
    assert _loss_on_each_replica(two_replicas, undivided=True) == pytest.approx([5.0, 5.0])
    assert _loss_on_each_replica(two_replicas, undivided=False) == pytest.approx([2.5, 2.5])
    single = tf.distribute.get_strategy()
    assert _loss_on_each_replica(single, undivided=True) == pytest.approx([5.0])


def test_compiled_models_are_covered(two_replicas) -> None:
    with two_replicas.scope():
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, kernel_regularizer="l2")]
        )
        model.compile(loss="mse")
        model.set_weights([np.array([[2.0]]), np.zeros([1])])

    def step() -> tf.Tensor:
        x = tf.ones((4, 1))
        with distributed_gradients.undivided_losses():
            return model.compute_loss(x=x, y=0 * x, y_pred=model(x), training=True)

    values = two_replicas.experimental_local_results(two_replicas.run(tf.function(step)))
    assert [float(value) for value in values] == pytest.approx([4.04, 4.04])
