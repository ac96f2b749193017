import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.modeling import grad_utils
from tests import rounding


def mirrored(num_replicas):
    # Reduces on one device: the collectives that are the default can't be used by two strategies
    # in one process.
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def step_on(values, optimizer_fn, num_replicas=2, **kwargs):
    """One step on the loss `w * value` per replica; returns `w`, which starts at 0, on each."""
    strategy = mirrored(num_replicas)
    with strategy.scope():
        weights = keras.Variable(tf.zeros([2]))
        unused = keras.Variable(1.0)
        optimizer = optimizer_fn()
        optimizer.build([weights, unused])

    def replica_step():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        value = tf.gather(tf.constant(values), replica)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights * value)
        grad_utils.minimize_using_explicit_allreduce(
            tape, optimizer, loss, [weights, unused], **kwargs
        )

    tf.function(strategy.run)(replica_step)
    return [v.numpy() for v in strategy.experimental_local_results(weights.value)]


GRADIENTS = [[0.5, 0.5], [1.5, 1.5]]


def test_gradients_are_summed_once_over_replicas():
    for weights in step_on(GRADIENTS, lambda: keras.optimizers.SGD(1.0)):
        np.testing.assert_allclose(weights, [-2.0, -2.0])


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_clipping_does_not_depend_on_the_number_of_replicas(num_replicas):
    values = [[2.0, 2.0]] if num_replicas == 1 else GRADIENTS
    weights, *_ = step_on(
        values, lambda: keras.optimizers.SGD(1.0, global_clipnorm=1.0), num_replicas
    )
    rounding.assert_close(weights, [-(0.5**0.5)] * 2, roundings=4)


def test_callbacks_see_single_gradients_before_and_the_sum_after():
    def halve(pairs):
        return [(gradient / 2.0, variable) for gradient, variable in pairs if gradient is not None]

    def clip(pairs):
        return [(tf.clip_by_value(gradient, -0.5, 0.5), variable) for gradient, variable in pairs]

    kwargs = {"pre_allreduce_callbacks": [halve], "post_allreduce_callbacks": [clip]}
    for weights in step_on(GRADIENTS, lambda: keras.optimizers.SGD(1.0), **kwargs):
        np.testing.assert_allclose(weights, [-0.5, -0.5])


@pytest.mark.parametrize(
    "optimizer_fn",
    [
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=16.0),
        lambda: keras.optimizers.SGD(1.0, loss_scale_factor=16.0),
    ],
)
def test_loss_scaling_leaves_the_update_as_it_is(optimizer_fn):
    def keep(pairs):
        return [(tf.clip_by_value(gradient, -1.0, 1.0), variable) for gradient, variable in pairs]

    for weights in step_on(GRADIENTS, optimizer_fn, post_allreduce_callbacks=[keep]):
        np.testing.assert_allclose(weights, [-1.0, -1.0])


def test_an_overflow_on_one_replica_skips_the_step_on_all():
    def optimizer_fn():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=16.0)

    for weights in step_on([[np.inf, 0.0], [1.0, 1.0]], optimizer_fn):
        np.testing.assert_array_equal(weights, [0.0, 0.0])


def test_sparse_gradients_are_summed_too():
    table = keras.Variable(tf.zeros([3, 1]))
    optimizer = keras.optimizers.SGD(1.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table.value, [0, 2, 2]))
    grad_utils.minimize_using_explicit_allreduce(tape, optimizer, loss, [table])
    np.testing.assert_allclose(table, [[-1.0], [0.0], [-2.0]])


def test_a_loss_without_any_gradient_is_refused():
    weights = keras.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = tf.constant(1.0)
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        grad_utils.minimize_using_explicit_allreduce(
            tape, keras.optimizers.SGD(1.0), loss, [weights]
        )
