"""Updates in fewer ops have Keras' results, in Keras' variables."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.modeling.distributed_gradients import make_distributed
from tests import rounding
from tests.modeling.conftest import ADAM_ERROR

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1, weight_decay=0.1),
    "adam": lambda: keras.optimizers.Adam(0.1, beta_1=0.8),
    "amsgrad": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), weight_decay=0.1
    ),
}
# For Adam, the first and the last have a kernel, and the one in between has not.
SHAPES = [(3, 2), (32, 32), (256, 128)]


def _train(
    optimizer_fn: Callable[[], Any],
    dtype: str = "float32",
    jit_compile: bool = False,
    strategy: tf.distribute.Strategy | None = None,
) -> list[np.ndarray]:
    """The variables and the optimizer's after three updates, on each replica with its share."""
    strategy = strategy or tf.distribute.get_strategy()
    rng = np.random.default_rng(0)
    with strategy.scope():
        values = [rng.normal(size=shape) for shape in SHAPES]
        variables = [keras.Variable(v, dtype=dtype, name=str(len(v))) for v in values]
        optimizer = optimizer_fn()
        optimizer.build(variables)

    def replica_update(gradients: list[tf.Tensor]) -> None:
        shares = [gradient / strategy.num_replicas_in_sync for gradient in gradients]
        optimizer.apply_gradients(zip(shares, variables, strict=True))

    @tf.function(jit_compile=jit_compile)
    def update(gradients: list[tf.Tensor]) -> None:
        strategy.run(replica_update, args=(gradients,))

    for _ in range(3):
        update([tf.constant(rng.normal(size=shape), tf.as_dtype(dtype)) for shape in SHAPES])
    return [np.asarray(v.numpy(), np.float64) for v in [*variables, *optimizer.variables]]


def _distributed(name: str) -> Callable[[], Any]:
    return lambda: make_distributed(OPTIMIZERS[name]())


def _assert_close(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=ADAM_ERROR, atol=3 * 0.1 * ADAM_ERROR)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_results_are_those_of_keras(name: str) -> None:
    _assert_close(_train(_distributed(name)), _train(OPTIMIZERS[name]))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_xla_computes_the_same(name: str) -> None:
    _assert_close(_train(_distributed(name), jit_compile=True), _train(_distributed(name)))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_replicas_compute_the_same(name: str, two_replicas: tf.distribute.Strategy) -> None:
    _assert_close(_train(_distributed(name), strategy=two_replicas), _train(_distributed(name)))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_adam_in_other_precisions_is_left_to_keras(dtype: str) -> None:
    ours, keras_own = (_train(fn, dtype) for fn in (_distributed("adam"), OPTIMIZERS["adam"]))
    for one, other in zip(ours, keras_own, strict=True):
        np.testing.assert_array_equal(one, other)


def test_adam_is_as_near_to_its_formula_as_its_precision_allows() -> None:
    for shape in SHAPES:
        weight = keras.Variable(np.zeros(shape, np.float32))
        optimizer = make_distributed(keras.optimizers.Adam(0.1, epsilon=1e-12))
        optimizer.apply_gradients([(np.full(shape, 0.5, np.float32), weight)])
        # The first step is the learning rate. Keras' own is off by 6e-6.
        rounding.assert_close(weight.numpy(), np.full(shape, -0.1))


def test_variables_are_those_of_keras() -> None:
    plain, fewer_ops = OPTIMIZERS["adamw"](), make_distributed(OPTIMIZERS["adamw"]())
    for optimizer in (plain, fewer_ops):
        optimizer.build([keras.Variable([1.0], name="weight")])
    layouts = [[(v.name, v.shape) for v in o.variables] for o in (plain, fewer_ops)]
    assert layouts[0] == layouts[1]


def test_what_is_shared_is_computed_once() -> None:
    calls = []

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            calls.append(step)
            return tf.constant(0.1)

    variables = [keras.Variable(np.ones(size, np.float32)) for size in (2, 3, 1024)]
    optimizer = make_distributed(keras.optimizers.AdamW(Schedule(), weight_decay=0.1))
    optimizer.build(variables)
    traced = tf.function(
        lambda: optimizer.apply_gradients([(tf.ones(v.shape), v) for v in variables])
    ).get_concrete_function()
    # For the decay and for the step.
    assert len(calls) == 2
    op_types = [op.type for op in traced.graph.get_operations()]
    assert op_types.count("Pow") == 2
    assert op_types.count("ResourceApplyAdam") == 2


def test_step_of_the_users_own_stays() -> None:
    class Sign(keras.optimizers.Adam):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            variable.assign_sub(learning_rate * tf.sign(gradient))

        def _apply_weight_decay(self, variables: Any) -> None:
            for variable in variables:
                variable.assign(2.0 * variable)

    weight = keras.Variable([1.0])
    make_distributed(Sign(0.5)).apply_gradients([(tf.constant([3.0]), weight)])
    np.testing.assert_array_equal(weight.numpy(), [1.5])


def test_one_variable_can_be_updated_by_itself() -> None:
    weights = [keras.Variable([1.0]) for _ in range(2)]
    for optimizer, weight in zip(
        (keras.optimizers.Adam(0.1), make_distributed(keras.optimizers.Adam(0.1))),
        weights,
        strict=True,
    ):
        optimizer.build([weight])
        optimizer.update_step(tf.constant([2.0]), weight.value, 0.1)
    np.testing.assert_allclose(weights[1].numpy(), weights[0].numpy(), atol=0.1 * ADAM_ERROR)
