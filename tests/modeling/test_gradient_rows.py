"""Updating the rows that have a gradient is updating the whole table."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.modeling import distributed_gradients, optimization
from official_lite.modeling.distributed_gradients import make_distributed
from tests import rounding
from tests.modeling.conftest import ADAM_ERROR

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adagrad_from_zero": lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.0),
    "adagrad_decay": lambda: keras.optimizers.Adagrad(0.1, weight_decay=0.1),
    "adagrad_average": lambda: keras.optimizers.Adagrad(0.1, use_ema=True),
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "sgd_global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.5),
    "sgd_clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.5),
    "sgd_clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.02),
}


def _without_decay() -> Any:
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["variable"])
    return optimizer


LAZY: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(0.1),
    "amsgrad": lambda: keras.optimizers.Adam(0.1, amsgrad=True, clipnorm=0.5),
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
    "adamw_excluded": _without_decay,
    "adam_weight_decay": lambda: optimization.AdamWeightDecay(0.1, weight_decay_rate=0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1),
    "rmsprop_centered": lambda: keras.optimizers.RMSprop(0.1, momentum=0.9, centered=True),
    "adagrad_decay": lambda: keras.optimizers.Adagrad(0.1, weight_decay=0.1),
}
# Each batch has a row for each of two replicas, with tokens that come back, within and without.
BATCHES = np.array([[[1, 1, 4], [4, 0, 1]], [[2, 2, 2], [2, 3, 3]], [[0, 1, 2], [5, 5, 0]]])


class _Run:
    """Three updates of a table and a kernel.

    Attributes:
        values: What the variables are then, and the optimizer's.
        ops: The types of the ops that were traced.
    """

    def __init__(
        self,
        optimizer_fn: Callable[[], Any],
        strategy: tf.distribute.Strategy | None = None,
        jit_compile: bool = False,
        batches: np.ndarray = BATCHES,
        keeps_other_rows: bool = False,
    ) -> None:
        self._strategy = strategy or tf.distribute.get_strategy()
        with self._strategy.scope():
            values = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
            self._table, self._kernel = keras.Variable(values), keras.Variable(values[:2])
            self._variables = [self._table, self._kernel]
            self._optimizer = make_distributed(optimizer_fn())
            self._optimizer.build(self._variables)
        update = tf.function(self._update, autograph=False, jit_compile=jit_compile)
        for batch in batches:
            before = [v.numpy() for v in self._of_table()]
            update(tf.constant(batch))
            if keeps_other_rows:
                self._put_back(before, set(range(6)) - {*batch.ravel()})
        graph = update.get_concrete_function(tf.constant(batches[0])).graph
        self.ops = {op.type for op in graph.get_operations()}
        self.values = [v.numpy() for v in [*self._variables, *self._optimizer.variables]]

    def _of_table(self) -> list[Any]:
        return [v for v in [self._table, *self._optimizer.variables] if v.shape == (6, 2)]

    def _put_back(self, values: list[np.ndarray], rows: set[int]) -> None:
        for variable, value in zip(self._of_table(), values, strict=True):
            mixed = variable.numpy()
            mixed[list(rows)] = value[list(rows)]
            variable.assign(mixed)

    def _update(self, ids: tf.Tensor) -> None:
        self._strategy.run(self._replica_update, args=(ids,))

    def _replica_update(self, ids: tf.Tensor) -> None:
        if self._strategy.num_replicas_in_sync == 2:
            ids = ids[tf.distribute.get_replica_context().replica_id_in_sync_group]
        with tf.GradientTape() as tape:
            rows = tf.gather(self._table.value, tf.reshape(ids, [-1]))
            loss = tf.reduce_sum(tf.tanh(rows @ tf.convert_to_tensor(self._kernel)) ** 2)
        gradients = tape.gradient(loss, [v.value for v in self._variables])
        assert isinstance(gradients[0], tf.IndexedSlices)
        self._optimizer.apply_gradients(zip(gradients, self._variables, strict=True))


def _dense(optimizer_fn: Callable[[], Any], *args: Any, **kwargs: Any) -> _Run:
    def with_transformer() -> Any:
        # A transformer is shown dense gradients; this one changes nothing.
        optimizer = make_distributed(optimizer_fn())
        optimizer.set_gradient_functions(None, [lambda pairs: pairs])
        return optimizer

    return _Run(with_transformer, *args, **kwargs)


def _assert_equal(values: Iterable[np.ndarray], expected: Iterable[np.ndarray]) -> None:
    for one, other in zip(values, expected, strict=True):
        # Three updates, with sums over six rows of two numbers.
        rounding.assert_close(one, other, roundings=3 * 6 * 2)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_result_is_that_of_the_dense_update(name: str) -> None:
    rows, dense = _Run(OPTIMIZERS[name]), _dense(OPTIMIZERS[name])
    assert "ResourceScatterUpdate" in rows.ops
    assert "ResourceScatterUpdate" not in dense.ops
    _assert_equal(rows.values, dense.values)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_replicas_update_like_one(name: str, two_replicas: tf.distribute.Strategy) -> None:
    _assert_equal(_Run(OPTIMIZERS[name], two_replicas).values, _dense(OPTIMIZERS[name]).values)


def _lazy(name: str) -> Callable[[], Any]:
    return lambda: make_distributed(LAZY[name](), lazy_rows=True)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", LAZY)
def test_lazy_update_is_the_dense_one_of_the_rows_looked_up(name: str) -> None:
    lazy, dense = _Run(_lazy(name)), _Run(LAZY[name], keeps_other_rows=True)
    assert "ResourceScatterUpdate" in lazy.ops
    for one, other in zip(lazy.values, dense.values, strict=True):
        np.testing.assert_allclose(one, other, rtol=ADAM_ERROR, atol=3 * 0.1 * ADAM_ERROR)


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop_centered"])
def test_two_replicas_make_the_lazy_update_of_one(
    name: str, two_replicas: tf.distribute.Strategy
) -> None:
    _assert_equal(_Run(_lazy(name), two_replicas).values, _Run(_lazy(name)).values)


def test_lazy_rows_that_are_not_looked_up_keep_every_bit() -> None:
    before, after = (_Run(_lazy("adamw"), batches=BATCHES[:count]).values for count in (1, 2))
    others = [0, 1, 4, 5]
    # The table and its two moments.
    for index in (0, 4, 5):
        assert before[index].shape == (6, 2)
        np.testing.assert_array_equal(before[index][others], after[index][others])
        assert (before[index][[2, 3]] != after[index][[2, 3]]).all()


@pytest.mark.parametrize(
    ("optimizer_fn", "message"),
    [
        (lambda: keras.optimizers.Lamb(0.1), "not Lamb, which updates whole tables"),
        (lambda: keras.optimizers.Adam(0.1, loss_scale_factor=8.0), "the loss is scaled"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)),
            "the loss is scaled",
        ),
        (
            lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
            "gradient_accumulation_steps",
        ),
    ],
)
def test_lazy_rows_are_refused_where_they_can_not_be(
    optimizer_fn: Callable[[], Any], message: str
) -> None:
    with pytest.raises(errors.ConfigValueError, match=message):
        _Run(lambda: make_distributed(optimizer_fn(), lazy_rows=True))


def test_lazy_rows_are_refused_in_xla() -> None:
    with pytest.raises(errors.ConfigValueError, match="XLA compiles the update"):
        _Run(_lazy("adam"), jit_compile=True)


def test_batch_without_a_token_changes_nothing() -> None:
    run = _Run(OPTIMIZERS["adagrad"], batches=np.zeros([1, 2, 0], np.int64))
    untouched = _dense(OPTIMIZERS["adagrad"], batches=np.zeros([1, 2, 0], np.int64))
    _assert_equal(run.values, untouched.values)


def test_gradients_are_dense_in_xla() -> None:
    compiled = _Run(OPTIMIZERS["adagrad"], jit_compile=True)
    assert "Unique" not in compiled.ops
    _assert_equal(compiled.values, _Run(OPTIMIZERS["adagrad"]).values)


@pytest.mark.parametrize(
    "optimizer_fn",
    [
        lambda: keras.optimizers.Adam(0.1),
        lambda: keras.optimizers.RMSprop(0.1),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        lambda: keras.optimizers.SGD(0.1, loss_scale_factor=8.0),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adagrad(0.1)),
    ],
)
def test_gradients_are_dense_where_other_rows_change_or_keras_divides(
    optimizer_fn: Callable[[], Any],
) -> None:
    run = _Run(optimizer_fn)
    assert "ResourceScatterUpdate" not in run.ops
    _assert_equal(run.values, _dense(optimizer_fn).values)


def test_transformers_see_dense_gradients_and_observers_each_row_once() -> None:
    seen, observed_types = [], []

    def transform(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        seen.extend(gradient for gradient, _ in pairs)
        return [(gradient + 1.0, variable) for gradient, variable in pairs]

    def observe(pairs: Any) -> None:
        observed_types.extend(type(gradient) for gradient, _ in pairs)
        rows = pairs[0][0].indices
        tf.debugging.assert_equal(tf.size(rows), tf.size(tf.unique(rows).y))

    def transforming() -> Any:
        optimizer = make_distributed(keras.optimizers.SGD(0.1))
        optimizer.set_gradient_functions(None, [transform])
        return optimizer

    def observed() -> Any:
        optimizer = make_distributed(keras.optimizers.SGD(0.1))
        distributed_gradients.observe_gradients(optimizer, observe)
        return optimizer

    assert "ResourceScatterUpdate" not in _Run(transforming).ops
    assert "ResourceScatterUpdate" in _Run(observed).ops
    assert observed_types[0] is tf.IndexedSlices
    assert len(seen) == 2
    assert not any(isinstance(gradient, tf.IndexedSlices) for gradient in seen)
