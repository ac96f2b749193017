import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.orbit import hooks
from tests import rounding

# The norm is a mean over four steps with eight examples each.
TOLERANCE = rounding.tolerance(roundings=4 * 8)


@pytest.fixture
def train(make_controller, make_task_trainer):
    """Return a function that trains for four steps and returns the trainer."""

    def run(hook, strategy=None, **kwargs):
        strategy = strategy or tf.distribute.get_strategy()
        with strategy.scope():
            trainer = make_task_trainer(**kwargs)
        make_controller(trainer, hooks=[hook], steps_per_loop=4, strategy=strategy).train(4)
        return trainer

    return run


def _expected(trainer_of, steps=4):
    """Compute the mean norms of all gradients and of the kernel's gradient over the steps."""
    trainer = trainer_of()
    norms = []
    for x, y in trainer.train_dataset.take(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((trainer.model(x) - y) ** 2)
        gradients = tape.gradient(loss, trainer.model.trainable_variables)
        norms.append([tf.linalg.global_norm(gradients), tf.norm(gradients[0])])
        for gradient, variable in zip(gradients, trainer.model.trainable_variables, strict=True):
            variable.assign_sub(1e-4 * gradient)
    return np.mean(norms, axis=0)


def test_reported_gradient_norm_is_the_mean_over_the_reporting_interval(
    train, make_task_trainer, recording_writer
):
    train(hooks.GradientNorm(per_variable=True))
    values = recording_writer.records[-1].values
    every, kernel = _expected(make_task_trainer)
    assert values["gradient_norm"] == pytest.approx(every, rel=TOLERANCE)
    assert values["gradient_norm/net/top/kernel"] == pytest.approx(kernel, rel=TOLERANCE)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "kwargs",
    [
        {"optimizer": {"optimizer": {"type": "sgd", "sgd": {"global_clipnorm": 1e-6}}}},
        {"runtime": {"enable_xla": True}},
        {"optimizer": {"ema": {}}},
    ],
)
def test_gradient_norm_is_measured_before_clipping_and_unaffected_by_xla_and_ema(
    train, recording_writer, kwargs
):
    clipped = "sgd" in str(kwargs)
    train(hooks.GradientNorm(), **kwargs)
    norm = recording_writer.records[-1].values["gradient_norm"]
    train(hooks.GradientNorm())
    other = recording_writer.records[-1].values["gradient_norm"]
    # Clipped updates hardly change the weights, so the gradients of later steps differ.
    assert norm == pytest.approx(other, rel=0.5 if clipped else TOLERANCE)


def test_gradient_norm_does_not_depend_on_replicas_and_micro_batches(
    train, recording_writer, two_replicas
):
    train(hooks.GradientNorm())
    train(hooks.GradientNorm(), grad_accum_steps=2)
    train(hooks.GradientNorm(), strategy=two_replicas)
    norms = [record.values["gradient_norm"] for record in recording_writer.records]
    np.testing.assert_allclose(norms, norms[0], rtol=TOLERANCE)


def test_gradient_norm_covers_all_optimizers_of_a_multi_optimizer(
    train, make_task_trainer, points_task, recording_writer
):
    class OneEach(points_task):
        def create_optimizer(self, optimizer_config, runtime_config=None, dp_config=None):
            return keras.optimizers.MultiOptimizer(
                lambda variable: keras.optimizers.SGD(1e-4, name=variable.name)
            )

    train(hooks.GradientNorm(), task_cls=OneEach)
    every, _ = _expected(make_task_trainer)
    norm = recording_writer.records[-1].values["gradient_norm"]
    assert norm == pytest.approx(every, rel=TOLERANCE)


@pytest.mark.usefixtures("float16_kernels")
def test_gradient_norm_excludes_the_loss_scale_and_overflowing_steps(train, recording_writer):
    train(hooks.GradientNorm())
    train(hooks.GradientNorm(), runtime={"mixed_precision_dtype": "float16", "loss_scale": 8.0})
    train(hooks.GradientNorm(), runtime={"mixed_precision_dtype": "float16"})
    plain, scaled, overflowing = (r.values.get("gradient_norm") for r in recording_writer.records)
    # The loss sums over three inputs and over eight examples.
    assert scaled == pytest.approx(plain, rel=rounding.tolerance("float16", roundings=3 + 8))
    assert overflowing is None or np.isfinite(overflowing)


def test_gradient_histograms_are_logged_only_for_variables_that_match_the_pattern(
    train, recording_writer
):
    train(hooks.GradientNorm(pattern="kernel", histograms=True))
    record = recording_writer.records[-1]
    assert list(record.histograms) == ["gradients/net/top/kernel"]
    assert record.histograms["gradients/net/top/kernel"].counts.sum() == 4 * 3
    assert [name for name in record.values if "gradient" in name] == ["gradient_norm"]


def test_gradient_histograms_count_each_value_once_on_two_replicas(
    train, recording_writer, two_replicas
):
    train(hooks.GradientNorm(pattern="kernel", histograms=True), strategy=two_replicas)
    (histogram,) = recording_writer.records[-1].histograms.values()
    assert histogram.counts.sum() == 4 * 3
