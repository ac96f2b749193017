from collections.abc import Callable

import keras
import pytest

from official_lite.modeling import distributed_gradients
from official_lite.modeling.optimization import ema_optimizer, preparation


def _model() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def test_optimizer_of_the_users_own_is_built_and_sums_over_replicas() -> None:
    optimizer = keras.optimizers.Adam()
    assert preparation.prepare_optimizer(optimizer, _model()) is optimizer
    assert optimizer.built
    assert isinstance(optimizer, distributed_gradients.DistributedOptimizer)


def test_average_is_created() -> None:
    optimizer = ema_optimizer.ExponentialMovingAverage(keras.optimizers.SGD())
    preparation.prepare_optimizer(optimizer, _model())
    assert optimizer.has_shadow_copy


def test_what_is_no_optimizer_is_left_alone() -> None:
    assert preparation.prepare_optimizer(None, _model()) is None


@pytest.mark.parametrize(
    ("optimizer_fn", "expected"),
    [
        (keras.optimizers.Adagrad, True),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), True),
        (keras.optimizers.Adam, False),
    ],
)
def test_tables_are_read_by_rows_where_they_are_updated_by_rows(
    optimizer_fn: Callable[[], keras.optimizers.Optimizer], expected: bool
) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(4, 2)])
    preparation.prepare_optimizer(optimizer_fn(), model)
    assert ("call" in vars(model.layers[0])) == expected
