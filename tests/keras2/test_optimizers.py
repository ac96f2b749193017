"""An optimizer class written for Keras 2 computes the updates of Keras 2."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import keras2
from official_lite.checkpoint import fallback, warm_start
from official_lite.common import errors
from official_lite.modeling import distributed_gradients
from official_lite.modeling.optimization import ema_optimizer
from tests import rounding


class Momentum(keras2.Optimizer):
    """An optimizer with weight decay for kernels and a momentum that may change in training."""

    def __init__(self, learning_rate=0.1, momentum=0.9, weight_decay=0.0, name="Momentum", **kw):
        super().__init__(name, **kw)
        self._set_hyper("learning_rate", learning_rate)
        self._set_hyper("momentum", momentum)
        self._set_hyper("weight_decay", weight_decay)

    def _create_slots(self, var_list):
        for var in var_list:
            self.add_slot(var, "accumulator")

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        apply_state[(var_device, var_dtype)]["momentum"] = self._get_hyper("momentum", var_dtype)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        state = apply_state[(var.device, var.dtype.base_dtype)]
        if "/kernel" in var.name:
            grad += self._get_hyper("weight_decay") * var
        slot = self.get_slot(var, "accumulator")
        slot.assign(state["momentum"] * slot + grad, use_locking=self._use_locking)
        return var.assign_sub(state["lr_t"] * slot)

    def get_config(self):
        names = ("learning_rate", "momentum", "weight_decay")
        hypers = {name: self._serialize_hyperparameter(name) for name in names}
        return {**super().get_config(), **hypers}


class Rows(keras2.Optimizer):
    """An optimizer that subtracts dense gradients, but only half of sparse ones."""

    def _resource_apply_dense(self, grad, var):
        return var.assign_sub(grad)

    def _resource_apply_sparse(self, grad, var, indices):
        return self._resource_scatter_add(var, indices, -0.5 * grad)


class Decaying(keras2.Adam):
    """Adam that halves each variable before its update."""

    def _resource_apply_dense(self, grad, var, apply_state=None):
        with tf.control_dependencies([var.assign(0.5 * var)]):
            return super()._resource_apply_dense(grad, var, apply_state)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        with tf.control_dependencies([var.assign(0.5 * var)]):
            return super()._resource_apply_sparse(grad, var, indices, apply_state)


class Halving(keras2.Adam):
    def apply_gradients(self, grads_and_vars, name=None, experimental_aggregate_gradients=True):
        halves = [(grad * 0.5, var) for grad, var in grads_and_vars]
        return super().apply_gradients(
            halves, name=name, experimental_aggregate_gradients=experimental_aggregate_gradients
        )


def dense() -> keras.Model:
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="head")])
    model.set_weights([np.array([[1.0], [2.0]]), np.array([3.0])])
    return model


def gradients(model: keras.Model) -> list:
    values = [np.array([[0.5], [-1.0]], "float32"), np.array([2.0], "float32")]
    return list(zip(map(tf.constant, values), model.trainable_variables, strict=True))


def train(optimizer: keras.optimizers.Optimizer, model: keras.Model, steps: int = 3) -> list:
    step = tf.function(lambda: optimizer.apply_gradients(gradients(model)))
    for _ in range(steps):
        step()
    return model.get_weights()


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_momentum_optimizer_with_slots_and_hyperparameters_follows_its_formula(
    num_replicas, two_replicas
) -> None:
    strategy = two_replicas if num_replicas == 2 else tf.distribute.get_strategy()
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    with strategy.scope():
        model, optimizer = dense(), distributed_gradients.make_distributed(Momentum(schedule))
        optimizer.build(model.trainable_variables)

    def replica_step():
        shares = [(gradient / num_replicas, var) for gradient, var in gradients(model)]
        optimizer.apply_gradients(shares)

    step = tf.function(lambda: strategy.run(replica_step))
    for _ in range(3):
        step()
    rates, sums = 0.1 * np.array([1, 0.5, 0.25]), np.cumsum(0.9 ** np.arange(3))
    rounding.assert_close(model.get_weights()[1], [3.0 - 2.0 * rates @ sums], roundings=4)


def test_variable_name_seen_by_a_keras2_optimizer_is_the_variable_path() -> None:
    weights = train(Momentum(0.1, 0.0, weight_decay=1.0), dense(), steps=1)
    rounding.assert_close(weights[0], [[1.0 - 0.15], [2.0 - 0.1]], roundings=4)
    rounding.assert_close(weights[1], [3.0 - 0.2], roundings=4)


def test_hyperparameter_may_change_after_tracing_and_is_saved_in_the_config() -> None:
    optimizer, model = Momentum(0.1, momentum=0.5, clipnorm=9.0), dense()
    step = tf.function(lambda: optimizer.apply_gradients(gradients(model)))
    step()
    optimizer.momentum, optimizer.lr = 0.0, 1.0
    step()
    rounding.assert_close(model.get_weights()[1], [3.0 - 0.2 - 2.0], roundings=4)
    assert optimizer.learning_rate == 1.0
    copy = Momentum.from_config(optimizer.get_config())
    assert copy.get_config() == optimizer.get_config()
    assert (copy.clipnorm, copy.get_config()["momentum"]) == (9.0, 0.0)


@pytest.mark.parametrize("kind", ["number", "schedule"])
def test_resumed_training_with_restored_slots_equals_uninterrupted_training(kind, tmp_path) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    rate = schedule if kind == "schedule" else 0.1
    optimizer, model = Momentum(rate), dense()
    train(optimizer, model, steps=2)
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(tmp_path / "ckpt"))
    resumed, restored = Momentum(rate), dense()
    resumed.build(restored.trainable_variables)
    tf.train.Checkpoint(model=restored, optimizer=resumed).read(path).assert_consumed()
    for one, other in zip(train(optimizer, model), train(resumed, restored), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_keras2_adam_trains_like_keras_3_adam(amsgrad: bool) -> None:
    expected = train(keras.optimizers.Adam(0.1, amsgrad=amsgrad), dense())
    for one, other in zip(expected, train(keras2.Adam(0.1, amsgrad=amsgrad), dense()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_decay_argument_decreases_the_learning_rate_over_steps() -> None:
    weights = train(Momentum(1.0, 0.0, decay=1.0), dense(), steps=2)
    rounding.assert_close(weights[1], [3.0 - 2.0 - 1.0], roundings=4)


def test_sparse_gradient_sums_repeated_rows_and_updates_each_row_once() -> None:
    table = keras.Variable(np.ones([4, 1], "float32"), name="table")
    optimizer = distributed_gradients.make_distributed(Rows())
    gradient = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([1, 3, 1]), [4, 1])
    optimizer.apply_gradients([(gradient, table)])
    np.testing.assert_allclose(table, [[1.0], [-1.5], [1.0], [0.0]])


@pytest.mark.parametrize("is_sparse", [False, True])
def test_overridden_dense_and_sparse_updates_are_not_both_applied(is_sparse: bool) -> None:
    table = keras.Variable(np.ones([3, 1], "float32"), name="table")
    rows = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([1]), tf.constant([3, 1]))
    optimizer = distributed_gradients.make_distributed(Decaying(0.25, epsilon=1e-12))
    optimizer.apply_gradients([(rows if is_sparse else tf.convert_to_tensor(rows), table)])
    np.testing.assert_allclose(table, [[0.5], [0.25], [0.5]], rtol=1e-5)


def test_optimizer_without_a_sparse_update_method_accepts_sparse_gradients() -> None:
    table = keras.Variable(np.ones([3, 1], "float32"), name="table")
    gradient = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([1]), [3, 1])
    Momentum(1.0).apply_gradients([(gradient, table)])
    np.testing.assert_allclose(table, [[1.0], [0.0], [1.0]])


@pytest.mark.sample(2)
@pytest.mark.parametrize("wrap", ["plain", "distributed", "averaged", "scaled"])
def test_custom_apply_gradients_is_called_once_under_every_wrapper(wrap: str) -> None:
    model, optimizer = dense(), Halving(0.1, epsilon=1.0)
    if wrap == "distributed":
        optimizer = distributed_gradients.make_distributed(optimizer)
    if wrap == "averaged":
        optimizer = ema_optimizer.ExponentialMovingAverage(optimizer)
        optimizer.shadow_copy(model)
    if wrap == "scaled":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)
    # The moments of the first step are m = 0.1 and v = 0.001 before bias correction.
    correction = np.sqrt(1 - 0.999) / (1 - 0.9)
    step = 0.1 * correction * 0.1 / (np.sqrt(0.001) + 1.0)
    weights = train(optimizer, model, steps=1)
    rounding.assert_close(weights[1], [3.0 - step], roundings=4)


def test_error_for_an_unknown_optimizer_argument_suggests_the_most_similar_argument() -> None:
    with pytest.raises(errors.ConfigValueError, match=r"clip_norm.*clipnorm"):
        Momentum(clip_norm=1.0)


class Slowed(keras2.UpdateStep, keras.optimizers.SGD):
    """SGD with momentum on the mean of all gradients so far."""

    def build(self, var_list):
        super().build(var_list)
        if not hasattr(self, "_sums"):
            self._sums = [self.add_variable_from_reference(v, "sum") for v in var_list]

    def update_step(self, gradient, variable):
        total = self._sums[self._index_dict[self._var_key(variable)]]
        total.assign_add(gradient)
        super().update_step(total / tf.cast(self.iterations + 1, variable.dtype), variable)


class Plain(keras2.UpdateStep, keras.optimizers.Optimizer):
    def __init__(self, learning_rate=0.5, name="Plain", **kwargs):
        super().__init__(name=name, jit_compile=False, **kwargs)
        self._learning_rate = self._build_learning_rate(learning_rate)

    def update_step(self, gradient, variable):
        rate = tf.cast(self.learning_rate, variable.dtype)
        variable.assign_sub(rate * tf.convert_to_tensor(gradient))


def test_custom_update_step_without_a_learning_rate_argument_is_called() -> None:
    weight = keras.Variable([1.0, 2.0])
    optimizer = Slowed(0.1)
    apply = tf.function(lambda gradient: optimizer.apply_gradients([(gradient, weight)]))
    for gradient in ([1.0, 1.0], [3.0, 3.0]):
        apply(tf.constant(gradient))
    rounding.assert_close(weight, [1.0 - 0.1 - 0.2, 2.0 - 0.1 - 0.2], roundings=4)


def test_optimizer_subclass_may_set_its_learning_rate_after_super_init() -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.25])
    weight = keras.Variable([1.0])
    for rate, expected in ((0.5, [0.5, 0.0]), (schedule, [-1.0, -1.25])):
        optimizer = Plain(rate)
        for value in expected:
            optimizer.apply_gradients([(tf.constant([1.0]), weight)])
            rounding.assert_close(weight, [value], roundings=4)


def test_custom_slots_are_converted_from_a_keras_2_checkpoint(tmp_path) -> None:
    kernel = tf.Variable([[1.0]], name="dense/kernel")
    saved = tf.train.Checkpoint(
        model=tf.train.Checkpoint(**{"layer_with_weights-0": tf.train.Checkpoint(kernel=kernel)}),
        optimizer=tf.train.Checkpoint(
            _iterations=tf.Variable(7, dtype=tf.int64),
            _learning_rate=tf.Variable(0.5),
            _variables=[tf.Variable([[3.0]], name="Slowed/sum/dense/kernel")],
        ),
        global_step=tf.Variable(7, dtype=tf.int64),
    )
    path = saved.write(str(tmp_path / "ckpt-7"))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer, step = Slowed(0.1), tf.Variable(0, dtype=tf.int64)
    resumed = tf.train.Checkpoint(model=model, optimizer=optimizer, global_step=step)
    fallback.restore(resumed, path)
    np.testing.assert_array_equal(optimizer._sums[0], [[3.0]])
    assert (int(optimizer.iterations), int(step)) == (7, 7)


def save_keras2_run(path: str, slots: list[str]) -> str:
    """Write a checkpoint of the model `dense()` and of an Adam of Keras 2 with the given slots."""
    weights = {"kernel": [[4.0], [5.0]], "bias": [6.0]}
    layer = {name: tf.Variable(value, name=f"head/{name}") for name, value in weights.items()}
    return tf.train.Checkpoint(
        model=tf.train.Checkpoint(**{"layer_with_weights-0": tf.train.Checkpoint(**layer)}),
        optimizer=tf.train.Checkpoint(
            iter=tf.Variable(7, dtype=tf.int64),
            beta_1=tf.Variable(0.5),
            _variables=[
                tf.Variable(tf.fill(layer[slot.rpartition("/")[2]].shape, 3.0), name=f"Adam/{slot}")
                for slot in slots
            ],
        ),
        global_step=tf.Variable(7, dtype=tf.int64),
    ).write(path)


@pytest.mark.parametrize("start", ["resumed", "warm"])
def test_keras2_adam_resumes_a_keras_2_checkpoint_with_the_hyperparameters_of_the_config(
    start, tmp_path
) -> None:
    slots = ["m/head/kernel", "m/head/bias", "v/head/kernel", "v/head/bias"]
    path = save_keras2_run(str(tmp_path / "ckpt-7"), slots)
    model, optimizer = dense(), keras2.Adam(beta_1=0.8)
    optimizer.build(model.trainable_variables)
    if start == "resumed":
        fallback.restore(tf.train.Checkpoint(model=model, optimizer=optimizer), path)
    else:
        warm_start.load_optimizer(optimizer, model, path, with_counters=True)
    kernel = model.layers[0].kernel.value
    np.testing.assert_array_equal(optimizer.get_slot(kernel, "m"), [[3.0], [3.0]])
    assert int(optimizer.iterations) == 7
    assert float(optimizer.beta_1) == np.float32(0.8)


def test_weight_without_slots_in_a_keras_2_checkpoint_keeps_new_slots(tmp_path) -> None:
    slots = ["m/head/kernel", "v/head/kernel"]
    path = save_keras2_run(str(tmp_path / "ckpt-7"), slots)
    model, optimizer = dense(), keras2.Adam()
    fallback.restore(tf.train.Checkpoint(model=model, optimizer=optimizer), path)
    kernel, bias = (weight.value for weight in model.trainable_variables)
    np.testing.assert_array_equal(optimizer.get_slot(kernel, "m"), [[3.0], [3.0]])
    np.testing.assert_array_equal(optimizer.get_slot(bias, "m"), [0.0])
