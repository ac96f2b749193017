"""An optimizer that overrides `update_step(gradient, variable)` trains as it does in Keras 2."""

import keras
import numpy as np
import tensorflow as tf

from official_lite import keras2
from official_lite.checkpoint import fallback
from tests import rounding


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


def test_update_step_gets_no_learning_rate() -> None:
    weight = keras.Variable([1.0, 2.0])
    optimizer = Slowed(0.1)
    apply = tf.function(lambda gradient: optimizer.apply_gradients([(gradient, weight)]))
    for gradient in ([1.0, 1.0], [3.0, 3.0]):
        apply(tf.constant(gradient))
    rounding.assert_close(weight, [1.0 - 0.1 - 0.2, 2.0 - 0.1 - 0.2], roundings=4)


def test_learning_rate_is_set_after_the_constructor() -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.25])
    weight = keras.Variable([1.0])
    for rate, expected in ((0.5, [0.5, 0.0]), (schedule, [-1.0, -1.25])):
        optimizer = Plain(rate)
        for value in expected:
            optimizer.apply_gradients([(tf.constant([1.0]), weight)])
            rounding.assert_close(weight, [value], roundings=4)


def test_own_slots_are_converted_from_a_checkpoint_of_keras_2(tmp_path) -> None:
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
