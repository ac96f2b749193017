import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.modeling import grad_utils
from tests import rounding
from tests.modeling.conftest import copy_on_each


@pytest.fixture
def step_on(two_replicas):
    """Return a function that takes one step from `w = 0` on each replica's loss `w * value`."""

    def step(values, optimizer_fn, **kwargs):
        strategy = two_replicas if len(values) == 2 else tf.distribute.get_strategy()
        with strategy.scope():
            weights, unused = keras.Variable(tf.zeros([2])), keras.Variable(1.0)
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
        return copy_on_each(weights)[0]

    return step


GRADIENTS = [[0.5, 0.5], [1.5, 1.5]]


@pytest.mark.parametrize("values", [[[2.0, 2.0]], GRADIENTS])
def test_gradients_summed_over_replicas_are_clipped_once(step_on, values):
    weights = step_on(values, lambda: keras.optimizers.SGD(1.0, global_clipnorm=1.0))
    rounding.assert_close(weights, [-(0.5**0.5)] * 2, roundings=4)


def test_pre_allreduce_callbacks_run_per_replica_and_post_allreduce_callbacks_on_the_sum(step_on):
    def halve(pairs):
        return [(gradient / 2.0, variable) for gradient, variable in pairs if gradient is not None]

    def clip(pairs):
        return [(tf.clip_by_value(gradient, -0.5, 0.5), variable) for gradient, variable in pairs]

    kwargs = {"pre_allreduce_callbacks": [halve], "post_allreduce_callbacks": [clip]}
    weights = step_on(GRADIENTS, lambda: keras.optimizers.SGD(1.0), **kwargs)
    np.testing.assert_allclose(weights, [-0.5, -0.5])


@pytest.mark.parametrize(
    "optimizer_fn",
    [
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=16.0),
        lambda: keras.optimizers.SGD(1.0, loss_scale_factor=16.0),
    ],
)
def test_loss_scaling_does_not_change_the_update(step_on, optimizer_fn):
    def keep(pairs):
        return [(tf.clip_by_value(gradient, -1.0, 1.0), variable) for gradient, variable in pairs]

    weights = step_on(GRADIENTS, optimizer_fn, post_allreduce_callbacks=[keep])
    np.testing.assert_allclose(weights, [-1.0, -1.0])
    np.testing.assert_allclose(step_on(GRADIENTS, optimizer_fn), [-2.0, -2.0])


def test_overflow_on_one_replica_skips_the_step_on_all_replicas(step_on):
    def optimizer_fn():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=16.0)

    weights = step_on([[np.inf, 0.0], [1.0, 1.0]], optimizer_fn)
    np.testing.assert_array_equal(weights, [0.0, 0.0])


def test_repeated_rows_of_a_sparse_gradient_are_summed():
    table = keras.Variable(tf.zeros([3, 1]))
    optimizer = keras.optimizers.SGD(1.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table.value, [0, 2, 2]))
    grad_utils.minimize_using_explicit_allreduce(tape, optimizer, loss, [table])
    np.testing.assert_allclose(table, [[-1.0], [0.0], [-2.0]])


def test_minimizing_a_loss_that_depends_on_no_variable_raises():
    weights = keras.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = tf.constant(1.0)
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        grad_utils.minimize_using_explicit_allreduce(
            tape, keras.optimizers.SGD(1.0), loss, [weights]
        )
