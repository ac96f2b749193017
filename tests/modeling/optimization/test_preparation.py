from collections.abc import Callable

import keras
import pytest
import tensorflow as tf
from absl import logging

from official_lite.modeling import distributed_gradients, optimization
from official_lite.modeling.optimization import ema_optimizer, optimizer_factory


def _model() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def test_optimizer_of_the_users_own_is_built_and_sums_over_replicas() -> None:
    optimizer = keras.optimizers.Adam()
    assert optimizer_factory.prepare_optimizer(optimizer, _model()) is optimizer
    assert optimizer.built
    assert isinstance(optimizer, distributed_gradients.DistributedOptimizer)


def test_average_is_created() -> None:
    optimizer = ema_optimizer.ExponentialMovingAverage(keras.optimizers.SGD())
    optimizer_factory.prepare_optimizer(optimizer, _model())
    assert optimizer.has_shadow_copy


def test_what_is_no_optimizer_is_left_alone() -> None:
    assert optimizer_factory.prepare_optimizer(None, _model()) is None


def _shape_behind(handle: tf.Tensor) -> list[int]:
    return [dim.size for dim in handle._handle_data.shape_and_type[0].shape.dim]


def _lazy(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    return distributed_gradients.make_distributed(optimizer, lazy_rows=True)


@pytest.mark.parametrize(
    "optimizer_fn",
    [
        lambda: keras.optimizers.SGD(0.1, global_clipnorm=1.0),
        lambda: keras.optimizers.Adagrad(0.1, clipnorm=1.0),
        lambda: _lazy(optimization.AdamWeightDecay(weight_decay_rate=0.1)),
        lambda: _lazy(keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1)),
        lambda: _lazy(keras.optimizers.RMSprop(0.1, centered=True, momentum=0.9)),
    ],
)
def test_no_op_of_a_step_passes_over_a_whole_table(
    optimizer_fn: Callable[[], keras.optimizers.Optimizer],
) -> None:
    rows = 7919
    model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(rows, 2)])
    optimizer = optimizer_factory.prepare_optimizer(optimizer_fn(), model)

    @tf.function
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(ids) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    graph = step.get_concrete_function(tf.zeros([4, 3], tf.int32)).graph
    handles = [inner for outer, inner in graph.captures if rows in _shape_behind(outer)]
    assert handles
    users = {op.type for handle in handles for op in handle.consumers()}
    assert users == {"ResourceGather", "ResourceScatterUpdate"}


def test_average_over_a_large_table_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: messages.append(text % args))
    for rows in (10, 2**18):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(rows, 16)])
        average = ema_optimizer.ExponentialMovingAverage(keras.optimizers.Adagrad())
        optimizer_factory.prepare_optimizer(average, model)
    (message,) = messages
    assert "some rows of " in message
    assert "but the moving average of the weights" in message


@pytest.mark.parametrize(
    ("optimizer_fn", "expected"),
    [
        (keras.optimizers.Adagrad, True),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), True),
        (keras.optimizers.Adam, False),
        (lambda: _lazy(keras.optimizers.Adam()), True),
    ],
)
def test_tables_are_read_by_rows_where_they_are_updated_by_rows(
    optimizer_fn: Callable[[], keras.optimizers.Optimizer], expected: bool
) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(4, 2)])
    optimizer_factory.prepare_optimizer(optimizer_fn(), model)
    assert ("call" in vars(model.layers[0])) == expected
