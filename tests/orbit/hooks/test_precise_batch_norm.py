import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors, preemption
from official_lite.orbit import hooks
from tests import rounding

# 64 examples with three numbers each.
ROUNDINGS = 64 * 3


class Seen(orbit.Hook):
    """A hook that records the statistics used by each evaluation."""

    def __init__(self):
        self.means = []

    def after_eval(self, logs):
        self.means.append(self.trainer.model.get_layer("normalize").moving_mean.numpy())


@pytest.fixture
def train(make_controller, make_task_trainer, points_task):
    """Return a function that trains for 12 steps and evaluates at steps 4, 8 and 12."""

    class Task(points_task):
        def layers(self):
            return [
                keras.layers.Dense(3, name="bottom"),
                keras.layers.BatchNormalization(name="normalize"),
                keras.layers.Dropout(0.5, seed=5),
            ]

    def run(*used, strategy=None, **kwargs):
        strategy = strategy or tf.distribute.get_strategy()
        with strategy.scope():
            trainer = make_task_trainer(Task, **kwargs)
        controller = make_controller(trainer, hooks=used, strategy=strategy)
        controller.train_and_evaluate(train_steps=12, eval_interval=4)
        return trainer

    return run


def _mean(trainer, weights=None):
    """Return the mean input of the normalization layer with the current or the given weights."""
    kernel, bias = weights or trainer.model.get_layer("bottom").get_weights()
    examples = np.concatenate([x for x, _ in trainer.build_train_dataset().take(8)])
    return (examples @ kernel + bias).mean(0)


def test_each_evaluation_uses_batch_norm_statistics_of_the_evaluated_weights(train):
    seen = Seen()
    trainer = train(hooks.PreciseBatchNorm(num_steps=8), seen)
    assert len(seen.means) == 3
    rounding.assert_close(seen.means[-1], _mean(trainer), roundings=ROUNDINGS)
    assert (seen.means[0] != seen.means[1]).any()


def test_batch_norm_statistics_are_updated_every_n_steps(train):
    seen = Seen()
    trainer = train(hooks.PreciseBatchNorm(num_steps=8, every_n_steps=12), seen)
    lagging, _, precise = seen.means
    assert np.abs(lagging).max() < 0.3 * np.abs(precise).max()
    rounding.assert_close(precise, _mean(trainer), roundings=ROUNDINGS)


def test_evaluation_of_averaged_weights_uses_their_own_batch_norm_statistics(train):
    class Averages(orbit.Hook):
        def after_eval(self, logs):
            optimizer = self.trainer.optimizer
            optimizer.swap_weights()
            self.weights = self.trainer.model.get_layer("bottom").get_weights()
            optimizer.swap_weights()

    seen, averages = Seen(), Averages()
    trainer = train(hooks.PreciseBatchNorm(8), seen, averages, optimizer={"ema": {}})
    rounding.assert_close(seen.means[-1], _mean(trainer, averages.weights), roundings=ROUNDINGS)
    assert np.abs(seen.means[-1] - _mean(trainer)).max() > 1e-4


def test_evaluation_without_training_does_not_change_the_batch_norm_statistics(
    make_controller, train
):
    trainer = train()
    before = trainer.model.get_layer("normalize").moving_mean.numpy()
    make_controller(trainer, hooks=[hooks.PreciseBatchNorm(8)]).evaluate()
    np.testing.assert_array_equal(trainer.model.get_layer("normalize").moving_mean, before)


def test_batch_norm_statistics_are_computed_on_batches_as_modified_by_the_trainer(
    make_controller, make_task_trainer, points_task
):
    class Normalizing(points_task):
        def layers(self):
            return [keras.layers.BatchNormalization(name="normalize")]

    trainer, seen = make_task_trainer(Normalizing), Seen()
    trainer.next_train_inputs = lambda iterator: tf.nest.map_structure(
        lambda numbers: numbers + 100.0, next(iterator)
    )
    controller = make_controller(trainer, hooks=[hooks.PreciseBatchNorm(8), seen])
    controller.train_and_evaluate(train_steps=1, eval_interval=1)
    examples = np.concatenate([x for x, _ in trainer.build_train_dataset().take(8)])
    rounding.assert_close(seen.means[0], (examples + 100.0).mean(0), roundings=ROUNDINGS)


def test_second_train_call_computes_batch_norm_statistics_without_building_the_data_again(
    make_controller, make_task_trainer, points_task
):
    class Normalizing(points_task):
        def layers(self):
            return [keras.layers.BatchNormalization(name="normalize")]

    trainer, built = make_task_trainer(Normalizing), []
    build = trainer.build_train_dataset
    trainer.build_train_dataset = lambda: built.append(True) or build()
    controller = make_controller(trainer, hooks=[hooks.PreciseBatchNorm(8)])
    for steps in (1, 2):
        controller.train_and_evaluate(train_steps=steps, eval_interval=1)
    assert len(built) == 1


def test_precise_batch_norm_hook_reused_in_a_second_run_updates_the_model_of_that_run(train):
    hook = hooks.PreciseBatchNorm(num_steps=8)
    train(hook)
    seen = Seen()
    trainer = train(hook, seen)
    rounding.assert_close(seen.means[-1], _mean(trainer), roundings=ROUNDINGS)


@pytest.mark.parametrize("every_n_steps", [0, 4])
def test_signal_ends_the_computation_of_statistics_only_if_a_resumed_run_repeats_it(
    train, every_n_steps
):
    num_steps = 500
    drawn, evaluated = [], []

    class StopInside(orbit.Hook):
        """A hook that stops the run as soon as the third batch for statistics is drawn."""

        def before_train(self):
            build, trainer = self.trainer.build_train_dataset, self.trainer
            trainer.build_train_dataset = lambda: build().map(self.count)

        def count(self, x, y):
            def note(x):
                drawn.append(len(x))
                if len(drawn) == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                return x

            return tf.ensure_shape(tf.numpy_function(note, [x], x.dtype), x.shape), y

        def after_eval(self, logs):
            evaluated.append(logs)

    hook = hooks.PreciseBatchNorm(num_steps, every_n_steps)
    with preemption.catch_signals(), pytest.raises(errors.PreemptedError):
        train(StopInside(), hook)
    assert hook.controller.step == 4
    assert (len(drawn) >= num_steps) == bool(every_n_steps)
    assert not evaluated


@pytest.mark.parametrize("averages", [{}, {"ema": {"trainable_weights_only": False}}])
def test_batch_norm_statistics_are_restored_if_a_signal_ends_the_evaluation(train, averages):
    def stop():
        raise errors.PreemptedError("terminated")

    class Stop(orbit.Hook):
        def before_train(self):
            self.controller.eval_preparations.append(stop)

    variables = []
    for used in ([hooks.PreciseBatchNorm(num_steps=8), Stop()], [Stop()]):
        with pytest.raises(errors.PreemptedError):
            train(*used, optimizer=averages)
        trainer = used[-1].trainer
        trained = [*trainer.model.variables, *trainer.optimizer.variables]
        variables.append([each.numpy() for each in trained])
    for one, other in zip(*variables, strict=True):
        np.testing.assert_array_equal(one, other)
