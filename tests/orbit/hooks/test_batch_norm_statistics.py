import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import telemetry
from official_lite.common import errors, keras_variables
from official_lite.orbit.hooks import batch_norm_statistics
from tests import rounding

BATCH_SIZE = 8


@pytest.fixture
def make_normalized(make_task_trainer, points_task):
    """Return a function that builds a trainer whose model begins with batch normalization."""

    def make(*others, strategy=None, task_cls=points_task, **kwargs):
        class Task(task_cls):
            def layers(self):
                normalize = keras.layers.BatchNormalization(name="normalize", **kwargs)
                return [normalize, *(other() for other in others)]

        with (strategy or tf.distribute.get_strategy()).scope():
            return make_task_trainer(Task)

    return make


def _examples(trainer, steps):
    return np.concatenate([x for x, _ in trainer.build_train_dataset().take(steps)])


def _mean_square(examples):
    return np.square(examples).mean(0).max()


def _statistics(trainer, steps, layer="normalize"):
    batch_norm_statistics.BatchNormStatistics(trainer).update(steps)
    layer = trainer.model.get_layer(layer)
    return layer.moving_mean.numpy(), layer.moving_variance.numpy()


@pytest.mark.parametrize("kwargs", [{}, {"synchronized": True}, {"renorm": True}])
def test_moving_statistics_equal_the_exact_mean_and_variance_of_all_examples(
    make_normalized, kwargs
):
    trainer = make_normalized(**kwargs)
    mean, variance = _statistics(trainer, 3)
    examples = _examples(trainer, 3)
    rounding.assert_close(mean, examples.mean(0), roundings=len(examples))
    # A variance is a difference of squares, so its error scales with the squares.
    terms = {"roundings": len(examples), "scale": _mean_square(examples)}
    rounding.assert_close(variance, examples.var(0), **terms)
    if "renorm" in kwargs:
        stddev = trainer.model.get_layer("normalize").moving_stddev
        rounding.assert_close(np.square(stddev), examples.var(0) + 1e-3, **terms)


def test_batch_norm_statistics_cover_as_many_examples_with_micro_batches_as_without(
    make_task_trainer, points_task
) -> None:
    class Task(points_task):
        def layers(self):
            return [keras.layers.BatchNormalization(name="normalize")]

    trainer = make_task_trainer(Task, grad_accum_steps=2)
    mean, _ = _statistics(trainer, 3)
    examples = _examples(trainer, 2 * 3)
    assert len(examples) == 3 * BATCH_SIZE
    rounding.assert_close(mean, examples.mean(0), roundings=len(examples))


def test_second_update_replaces_the_batch_norm_statistics_of_the_first_update(make_normalized):
    trainer = make_normalized()
    statistics = batch_norm_statistics.BatchNormStatistics(trainer)
    statistics.update(8)
    statistics.update(8)
    mean = trainer.model.get_layer("normalize").moving_mean
    rounding.assert_close(mean, _examples(trainer, 8).mean(0), roundings=8 * BATCH_SIZE)


@pytest.mark.parametrize("synchronized", [False, True])
def test_batch_norm_statistics_cover_the_examples_of_all_replicas(
    make_normalized, two_replicas, synchronized
):
    trainer = make_normalized()
    expected = _statistics(trainer, 8)
    scale = _mean_square(_examples(trainer, 8))
    trainer = make_normalized(strategy=two_replicas, synchronized=synchronized)
    found = _statistics(trainer, 8)
    rounding.assert_close(found, expected, roundings=8 * BATCH_SIZE, scale=scale)
    normalize = trainer.model.get_layer("normalize")
    for one in keras_variables.local_values(normalize.moving_variance):
        np.testing.assert_array_equal(one.numpy(), found[1])


def test_batch_norm_update_does_not_replace_a_metric_attribute_of_the_task(
    make_normalized, points_task
):
    class KeepsItsMetric(points_task):
        def build_metrics(self, training=True):
            self.own = None if training else keras.metrics.Mean()
            return super().build_metrics(training)

    trainer = make_normalized(task_cls=KeepsItsMetric)
    kept = trainer.task.own
    _statistics(trainer, 1)
    assert kept is not None
    assert trainer.task.own is kept


def test_masked_examples_are_excluded_from_batch_norm_statistics(make_normalized, points_task):
    class Masked(points_task):
        def train_step(self, inputs, model, optimizer, metrics=None):
            model.get_layer("normalize")(inputs[0], training=True, mask=tf.range(8) < 6)
            return {"loss": 0.0}

    trainer = make_normalized(task_cls=Masked)
    mean, _ = _statistics(trainer, 1)
    rounding.assert_close(mean, _examples(trainer, 1)[:6].mean(0), roundings=6)


def test_calls_in_inference_mode_are_excluded_from_batch_norm_statistics(
    make_normalized, points_task
):
    class Twice(points_task):
        def train_step(self, inputs, model, optimizer, metrics=None):
            normalize = model.get_layer("normalize")
            normalize(inputs[0], training=True)
            normalize(inputs[0] + 100.0, training=False)
            return {"loss": 0.0}

    trainer = make_normalized(task_cls=Twice)
    mean, _ = _statistics(trainer, 1)
    rounding.assert_close(mean, _examples(trainer, 1).mean(0), roundings=BATCH_SIZE)


def test_forward_passes_that_a_layer_repeats_without_state_are_excluded_from_batch_norm_statistics(
    make_normalized, points_task
):
    class Perturbed(points_task):
        def train_step(self, inputs, model, optimizer, metrics=None):
            model(inputs[0], training=True)
            weights = [weight + 1.0 for weight in model.trainable_variables]
            constant = model.non_trainable_variables
            model.stateless_call(weights, constant, inputs[0] + 100.0, training=True)
            return {"loss": 0.0}

    trainer = make_normalized(task_cls=Perturbed)
    mean, _ = _statistics(trainer, 1)
    rounding.assert_close(mean, _examples(trainer, 1).mean(0), roundings=BATCH_SIZE)


class LogsItsMean(keras.layers.Layer):
    def call(self, inputs):
        telemetry.put_scalar("mean", keras.ops.mean(inputs))
        return inputs


def test_values_logged_while_batch_norm_statistics_are_computed_are_not_reported(make_normalized):
    trainer = make_normalized(LogsItsMean)
    with telemetry.EventStorage() as storage:
        batch_norm_statistics.BatchNormStatistics(trainer).update(1)
        assert storage.take().scalars == {}
        telemetry.put_scalar("later", 1.0)
        assert storage.take().scalars == {"later": 1.0}


def test_second_batch_norm_layer_receives_the_training_mode_output_of_the_first_layer(
    make_normalized,
):
    trainer = make_normalized(lambda: keras.layers.BatchNormalization(name="second"))
    mean, variance = _statistics(trainer, 8, "second")
    # The inputs of the first layer are up to 4 standard deviations from zero.
    rounding.assert_close(mean, 0.0, roundings=8 * BATCH_SIZE, scale=4.0)
    # The first layer divides by the square root of the batch variance plus 0.001.
    np.testing.assert_allclose(variance, 1.0, rtol=0.01)


def test_batch_norm_update_computes_a_small_variance_around_a_large_mean_precisely(
    make_normalized, points_task
):
    class Far(points_task):
        def build_inputs(self, params, input_context=None):
            data = super().build_inputs(params, input_context)
            return data.map(lambda x, y: (x * 0.01 + 1000.0, y))

    trainer = make_normalized(task_cls=Far)
    normalize = trainer.model.get_layer("normalize")
    normalize.moving_mean.assign([1000.0] * 3)
    _, variance = _statistics(trainer, 8)
    stddev = _examples(trainer, 8).astype(float).std(0)
    rounding.assert_close(np.sqrt(variance), stddev, scale=1000.0)


def test_batch_norm_update_changes_only_the_moving_statistics(make_normalized):
    trainer = make_normalized(lambda: keras.layers.Dropout(0.5, seed=1))
    before = {v.path: v.numpy() for v in trainer.model.variables}
    _statistics(trainer, 3)
    changed = [v.path for v in trainer.model.variables if (v.numpy() != before[v.path]).any()]
    assert [path.rpartition("/")[2] for path in changed] == ["moving_mean", "moving_variance"]
    assert int(trainer.optimizer.iterations) == int(trainer.global_step) == 0


def test_batch_norm_update_does_not_change_an_optimizer_that_belongs_to_the_task(
    make_normalized, points_task
):
    class TrainsByItself(points_task):
        def build_model(self):
            model = super().build_model()
            self.own = keras.optimizers.Adam(0.1)
            self.own.build(model.trainable_variables)
            return model

        def train_step(self, inputs, model, optimizer, metrics=None):
            with tf.GradientTape() as tape:
                loss = self.build_losses(inputs[1], model(inputs[0], training=True))
            variables = model.trainable_variables
            self.own.apply(tape.gradient(loss, variables), variables)
            return {self.loss: loss}

    trainer = make_normalized(task_cls=TrainsByItself)
    before = [variable.numpy() for variable in trainer.task.own.variables]
    _statistics(trainer, 3)
    after = [variable.numpy() for variable in trainer.task.own.variables]
    for value, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(value, other)


def test_batch_norm_update_supports_subclasses_that_rename_the_parameters_of_call(
    make_task_trainer, points_task
):
    class Renamed(keras.layers.BatchNormalization):
        def call(self, x, training=None):
            return super().call(x, training=training)

    class Task(points_task):
        def layers(self):
            return [Renamed(name="normalize")]

    trainer = make_task_trainer(Task)
    mean, _ = _statistics(trainer, 3)
    examples = _examples(trainer, 3)
    rounding.assert_close(mean, examples.mean(0), roundings=len(examples))


def test_batch_norm_update_does_not_change_the_position_or_order_of_the_training_data(
    make_normalized,
):
    drawn = []
    for reads_between in (False, True):
        trainer = make_normalized()
        iterator = iter(trainer.train_dataset)
        batches = [next(iterator)[0]]
        if reads_between:
            _statistics(trainer, 20)
        drawn.append(np.stack([*batches, *(next(iterator)[0] for _ in range(20))]))
    np.testing.assert_array_equal(*drawn)


def test_frozen_batch_norm_layers_keep_their_statistics(make_normalized):
    trainer = make_normalized()
    trainer.model.get_layer("normalize").trainable = False
    assert batch_norm_statistics.BatchNormStatistics(trainer).is_empty
    mean, _ = _statistics(trainer, 3)
    np.testing.assert_array_equal(mean, 0.0)


def test_batch_norm_update_reads_a_dataset_assigned_to_the_trainer_from_its_beginning(
    make_normalized,
):
    trainer = make_normalized()
    trainer.train_dataset = tf.data.Dataset.from_tensors((tf.ones((4, 3)), tf.ones((4, 1))))
    mean, variance = _statistics(trainer, 5)
    rounding.assert_close(mean, 1.0, roundings=5 * 4)
    rounding.assert_close(variance, 0.0, roundings=5 * 4, scale=1.0)


def test_computing_batch_norm_statistics_of_empty_training_data_raises(make_normalized):
    trainer = make_normalized()
    trainer.train_dataset = trainer.train_dataset.take(0)
    with pytest.raises(errors.DataError, match="training data are empty"):
        _statistics(trainer, 3)
