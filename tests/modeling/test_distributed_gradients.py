"""Optimizer updates do not depend on the number of replicas, even if called as in Keras 2."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.modeling import distributed_gradients
from official_lite.modeling.distributed_gradients import make_distributed
from official_lite.modeling.optimization import ema_optimizer
from tests import rounding
from tests.modeling.conftest import ROUNDINGS


def test_multi_optimizer_clips_the_gradients_summed_over_replicas(
    train_on: Callable[..., Any],
) -> None:
    def optimizer() -> Any:
        sgd = keras.optimizers.SGD(0.1, clipnorm=1.0)
        return make_distributed(keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(sgd)))

    one, two = (train_on(n, optimizer) for n in (1, 2))
    rounding.assert_close(two.weights, one.weights, roundings=ROUNDINGS)


def test_optimizers_that_a_multi_optimizer_creates_in_its_first_update_sum_over_replicas_once(
    two_replicas: tf.distribute.Strategy,
) -> None:
    with two_replicas.scope():
        used, unused = keras.Variable([0.0], name="used"), keras.Variable([0.0], name="unused")
        created = keras.optimizers.MultiOptimizer(lambda v: keras.optimizers.SGD(1.0, name=v.name))
        optimizer = ema_optimizer.ExponentialMovingAverage(created)

    def replica_step() -> None:
        optimizer.apply_gradients([(tf.constant([1.0]), used), (None, unused)])

    two_replicas.run(tf.function(replica_step))
    assert [float(variable.numpy()[0]) for variable in (used, unused)] == [-2.0, 0.0]


@pytest.mark.parametrize("loss_scaling", [False, True])
def test_gradient_aggregator_of_an_optimizer_in_a_multi_optimizer_sums_its_gradients(
    loss_scaling: bool,
) -> None:
    sgd, other = (make_distributed(keras.optimizers.SGD(1.0)) for _ in range(2))
    sgd.set_gradient_functions(lambda pairs: [(3.0 * g, v) for g, v in pairs], ())
    optimizer = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(other, {"own": sgd}))
    if loss_scaling:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)
    make_distributed(optimizer)
    own, rest = keras.Variable([0.0], name="own"), keras.Variable([0.0], name="rest")
    optimizer.apply_gradients([(tf.constant([1.0]), rest), (tf.constant([1.0]), own)])
    assert [float(variable.numpy()[0]) for variable in (own, rest)] == [-3.0, -1.0]


def test_observer_of_a_multi_optimizer_gets_rows_only_of_tables_whose_rows_are_updated() -> None:
    shown: dict[str, Any] = {}
    optimizer = make_distributed(
        keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(keras.optimizers.Adam(), {"rows": keras.optimizers.SGD()})
        )
    )
    distributed_gradients.observe_gradients(
        optimizer, lambda pairs: shown.update({v.name: g for g, v in pairs})
    )
    gradient = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([0, 0]), tf.constant([3, 1]))
    tables = [keras.Variable(np.ones((3, 1)), name=name) for name in ("rows", "whole")]
    optimizer.apply_gradients([(gradient, table) for table in tables])
    assert isinstance(shown["rows"], tf.IndexedSlices)
    np.testing.assert_array_equal(shown["rows"].values, [[2.0]])
    np.testing.assert_array_equal(shown["whole"], [[2.0], [0.0], [0.0]])


def test_gradients_that_are_already_summed_over_replicas_are_not_summed_again(
    two_replicas: tf.distribute.Strategy,
) -> None:
    with two_replicas.scope():
        weight = keras.Variable([0.0])
        optimizer = make_distributed(keras.optimizers.SGD(1.0))
        optimizer.build([weight])

    def replica_step() -> None:
        summed = distributed_gradients.sum_over_replicas([tf.constant([1.0])])
        pairs = zip(summed, [weight], strict=True)
        optimizer.apply_gradients(pairs, "name", experimental_aggregate_gradients=False)

    two_replicas.run(tf.function(replica_step))
    np.testing.assert_array_equal(weight.numpy(), [-2.0])


def test_summed_gradients_pass_through_transformers_in_order(
    two_replicas: tf.distribute.Strategy,
) -> None:
    with two_replicas.scope():
        weight = keras.Variable([0.0])
        optimizer = make_distributed(keras.optimizers.SGD(1.0))
        optimizer.build([weight])
    optimizer.set_gradient_functions(
        None,
        [
            lambda pairs: [(2.0 * gradient, variable) for gradient, variable in pairs],
            lambda pairs: [(gradient + 1.0, variable) for gradient, variable in pairs],
        ],
    )
    step = tf.function(lambda: optimizer.apply_gradients([(tf.constant([1.0]), weight)]))
    two_replicas.run(step)
    np.testing.assert_array_equal(weight.numpy(), [-5.0])


def test_make_distributed_returns_its_argument_and_does_not_change_its_config() -> None:
    plain = keras.optimizers.SGD(0.1, momentum=0.9)
    config = plain.get_config()
    optimizer = make_distributed(make_distributed(plain))
    assert optimizer is plain
    assert isinstance(optimizer, keras.optimizers.SGD)
    assert type(optimizer).__name__ == "SGD"
    assert optimizer.get_config() == config
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(restored) is keras.optimizers.SGD


def test_variables_without_gradients_are_skipped_with_one_warning(warnings: list[str]) -> None:
    used, unused = keras.Variable([1.0], name="used"), keras.Variable([1.0], name="unused")
    optimizer = make_distributed(keras.optimizers.SGD(1.0))
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant([1.0]), used), (None, unused)])
    assert (used.numpy(), unused.numpy()) == ([-1.0], [1.0])
    assert len(warnings) == 1
    assert "unused" in warnings[0]


@pytest.mark.parametrize(
    "create",
    [
        lambda: keras.optimizers.Adam(1.0),
        lambda: keras.optimizers.MultiOptimizer(lambda _: keras.optimizers.SGD()),
    ],
    ids=["adam", "multi"],
)
def test_update_in_which_no_variable_has_a_gradient_raises(create: Callable[[], Any]) -> None:
    weight = keras.Variable([1.0], name="weight")
    optimizer = make_distributed(create())
    with pytest.raises(ValueError, match="No gradients provided for any variable: weight"):
        optimizer.apply_gradients([(None, weight)])


def test_repeated_rows_of_a_sparse_gradient_are_summed() -> None:
    rows = tf.IndexedSlices(
        tf.constant([[1.0], [2.0]]), tf.constant([0, 0]), dense_shape=tf.constant([3, 1])
    )
    sparse, dense = keras.Variable(np.ones((3, 1))), keras.Variable(np.ones((3, 1)))
    for gradient, variable in ((rows, sparse), (tf.convert_to_tensor(rows), dense)):
        optimizer = make_distributed(keras.optimizers.Adam(0.1))
        for _ in range(3):
            optimizer.apply_gradients([(gradient, variable)])
    np.testing.assert_array_equal(sparse.numpy(), dense.numpy())


def test_applying_gradients_outside_a_replica_context_is_refused(
    two_replicas: tf.distribute.Strategy,
) -> None:
    with two_replicas.scope():
        weight = keras.Variable([1.0])
        optimizer = make_distributed(keras.optimizers.SGD(1.0))
        with pytest.raises(RuntimeError, match=r"strategy\.run"):
            optimizer.apply_gradients([(tf.constant([1.0]), weight)])


def test_make_distributed_also_makes_a_wrapped_optimizer_distributed() -> None:
    optimizer = make_distributed(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()))
    wrapped = list(distributed_gradients.wrapped_optimizers(optimizer))
    assert [type(one).__name__ for one in wrapped] == ["LossScaleOptimizer", "Adam"]
    assert isinstance(wrapped[0], distributed_gradients.DistributedLossScaleOptimizer)
    assert isinstance(wrapped[1], distributed_gradients.DistributedOptimizer)


def test_optimizer_built_before_make_distributed_keeps_its_slots(tmp_path: Any) -> None:
    weight = keras.Variable([1.0])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
    optimizer.apply_gradients([(tf.constant([1.0]), weight)])
    path = tf.train.Checkpoint(optimizer=make_distributed(optimizer)).save(str(tmp_path / "ckpt"))
    fresh = keras.optimizers.SGD(0.1, momentum=0.5)
    fresh.build([weight])
    tf.train.Checkpoint(optimizer=fresh).restore(path).assert_consumed()
    np.testing.assert_allclose(fresh.momentums[0].numpy(), [-0.1])


# Losses that are not divided by the number of replicas.


def _loss_on_each_replica(strategy: tf.distribute.Strategy, *, undivided: bool) -> list[float]:
    def step() -> tf.Tensor:
        loss = keras.losses.MeanSquaredError()
        if not undivided:
            return loss([[0.0], [0.0]], [[1.0], [3.0]])
        with distributed_gradients.undivided_losses():
            return loss([[0.0], [0.0]], [[1.0], [3.0]])

    values = strategy.run(tf.function(step))
    return [float(value) for value in strategy.experimental_local_results(values)]


def test_keras_loss_in_undivided_losses_context_is_not_divided_by_replica_count(
    two_replicas,
) -> None:
    assert _loss_on_each_replica(two_replicas, undivided=True) == pytest.approx([5.0, 5.0])
    assert _loss_on_each_replica(two_replicas, undivided=False) == pytest.approx([2.5, 2.5])
    single = tf.distribute.get_strategy()
    assert _loss_on_each_replica(single, undivided=True) == pytest.approx([5.0])


def test_compiled_loss_in_undivided_losses_context_is_not_divided_by_replica_count(
    two_replicas,
) -> None:
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
