"""A model draws the same random numbers in each execution mode."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_trainer
from official_lite.execution import modes
from tests import rounding
from tests.line_experiment import LineTask, line_experiment

STEPS = 3


class Noisy(keras.layers.Layer):
    """A layer with all kinds of random numbers that XLA can compile."""

    def build(self, shape):
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, x, training=False):
        seed = tf.cast(self.seeds.next(), tf.int32)
        for dtype in (tf.float32, tf.float64, tf.bfloat16, tf.float16):
            # These bounds scale without rounding. With others, a processor with instructions for
            # float16 or bfloat16 rounds once where others round twice.
            uniform = tf.random.stateless_uniform([3], seed, -1.0, 1.0, dtype=dtype)
            x += tf.reduce_mean(tf.cast(uniform, tf.float32))
        for dtype in (tf.float32, tf.float64):
            # Numbers are drawn in pairs; the odd length uses only half of the last pair.
            normal = tf.random.stateless_normal([3], seed, dtype=dtype)
            x += tf.reduce_mean(tf.cast(normal, tf.float32))
        return x + tf.cast(tf.random.stateless_uniform([], seed, 0, 9, tf.int32), tf.float32)


class RandomTask(LineTask):
    def build_model(self):
        return keras.Sequential(
            [
                keras.Input((2,)),
                Noisy(),
                keras.layers.Dense(12, kernel_initializer=keras.initializers.Constant(0.3)),
                keras.layers.GaussianNoise(0.2),
                keras.layers.Dropout(0.5),
                keras.layers.GaussianDropout(0.3),
                keras.layers.Reshape((2, 2, 3)),
                keras.layers.RandomFlip(),
                keras.layers.RandomContrast(0.4),
                keras.layers.Flatten(),
                keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.1)),
            ]
        )

    def build_inputs(self, params, input_context=None):
        data = super().build_inputs(params, input_context).unbatch().repeat()
        return data.batch(params.global_batch_size, drop_remainder=True)


class Truncated(keras.layers.Layer):
    def build(self, shape):
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, x, training=False):
        return x + keras.random.truncated_normal([1], seed=self.seeds)


class TruncatedTask(RandomTask):
    def build_model(self):
        return keras.Sequential([keras.Input((2,)), Truncated(), keras.layers.Dense(1)])


class CropTask(RandomTask):
    def build_model(self):
        layers = [keras.layers.Reshape((1, 2, 1)), keras.layers.RandomCrop(1, 1)]
        layers += [keras.layers.Flatten(), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((2,)), *layers])


def _trained(execution: str, task_cls: type[LineTask] = RandomTask) -> base_trainer.Trainer:
    params = line_experiment(
        runtime={"execution": execution},
        trainer={
            "optimizer_config": {"learning_rate": {"constant": {"learning_rate": 1e-3}}},
            "steps_per_loop": STEPS,
        },
    )
    keras.utils.set_random_seed(0)
    task = task_cls(params.task)
    optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
    trainer = base_trainer.Trainer(params, task, task.build_model(), optimizer, evaluate=False)
    trainer.train(tf.constant(STEPS))
    return trainer


def _weights_after(execution: str) -> list[np.ndarray]:
    return [weight.numpy() for weight in _trained(execution).model.trainable_variables]


@pytest.fixture(scope="module")
def in_graphs() -> list[np.ndarray]:
    return _weights_after("graph")


@pytest.mark.sample(2)
@pytest.mark.parametrize("execution", ["eager", "xla", "xla_loop"])
def test_all_execution_modes_draw_the_same_random_numbers(in_graphs, execution) -> None:
    for one, expected in zip(_weights_after(execution), in_graphs, strict=True):
        rounding.assert_close(one, expected, roundings=STEPS * 8 * 12 * 12)


@pytest.mark.parametrize(("execution", "num_warnings"), [("graph", 0), ("xla_loop", 1)])
def test_random_numbers_that_xla_draws_differently_log_one_warning(
    caplog, execution, num_warnings
) -> None:
    trainer = _trained(execution, TruncatedTask)
    trainer.train(tf.constant(1))
    assert caplog.text.count("XLA draws different random numbers") == num_warnings


def test_layer_whose_xla_results_are_wrong_is_refused_in_xla_mode() -> None:
    with pytest.raises(errors.ConfigValueError, match=r"random_crop.*graph"):
        _trained("xla", CropTask)
    assert "random_crop" in str(modes.why_not_xla(_trained("graph", CropTask)))
