import numpy as np
import pytest
import tensorflow as tf

from official_lite.nas import train_val_streams
from tests import rounding

ORDERS = ("first", "second", "finite_difference")


def _darts(order, rate=0.1):
    return {"one_shot": {"darts": {"order": order, "unrolled_learning_rate": rate}}}


def _batches():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(2, 6, 4)).astype(np.float32)
    y = generator.normal(size=(2, 6, 1)).astype(np.float32)
    return [(tf.constant(x[i]), tf.constant(y[i])) for i in range(2)]


def _gradients(trainer, inputs):
    compiled = tf.function(lambda i: trainer.strategy.run(trainer.arch_gradients, args=(i,)))
    return np.concatenate([g.numpy() for g in compiled(inputs)])


def _unrolled_loss(trainer, train, val, rate):
    """The real thing: weights are moved, the loss is taken, and they are put back."""
    weights = trainer.model.trainable_variables
    before = [w.numpy() for w in weights]
    with tf.GradientTape() as tape:
        loss = trainer.loss(train)
    for weight, gradient in zip(
        weights, tape.gradient(loss, [w.value for w in weights]), strict=True
    ):
        weight.assign_sub(rate * tf.convert_to_tensor(gradient))
    loss = float(trainer.loss(val))
    for weight, value in zip(weights, before, strict=True):
        weight.assign(value)
    return loss


@pytest.mark.sample(1)
@pytest.mark.parametrize("order", ["second", "finite_difference"])
def test_second_order_of_a_task_is_the_numeric_gradient(experiment, make_trainer, order) -> None:
    trainer = make_trainer(experiment(trainer=_darts(order, 0.3), task={"l2": 0.05}))
    train, val = _batches()
    found = _gradients(trainer, {train_val_streams.TRAIN: train, train_val_streams.VAL: val})
    numeric = []
    for alpha in trainer.alphas:
        start = alpha.numpy()
        for index in range(len(start)):
            step = np.zeros_like(start)
            step[index] = 3e-3
            losses = []
            for sign in (1.0, -1.0):
                alpha.assign(start + sign * step)
                losses.append(_unrolled_loss(trainer, train, val, 0.3))
            alpha.assign(start)
            numeric.append((losses[0] - losses[1]) / 6e-3)
    # A loss below 5 has rounding errors below 2e-6, which are divided by 6e-3.
    np.testing.assert_allclose(found, numeric, rtol=0.02, atol=2e-3)


@pytest.mark.slow
def test_a_step_of_length_zero_is_first_order(experiment, make_trainer) -> None:
    train, val = _batches()
    inputs = {train_val_streams.TRAIN: train, train_val_streams.VAL: val}
    first = _gradients(make_trainer(experiment(trainer=_darts("first"))), inputs)
    for order in ORDERS[1:]:
        found = _gradients(make_trainer(experiment(trainer=_darts(order, 0.0))), inputs)
        # Three layers with sums over four inputs, and six examples.
        rounding.assert_close(found, first, roundings=3 * 4 * 6, scale=1.0)
    far = _gradients(make_trainer(experiment(trainer=_darts("second", 0.3))), inputs)
    assert np.max(np.abs(far - first)) > 1e-3


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "order", ["first", "second", pytest.param("finite_difference", marks=pytest.mark.slow)]
)
def test_two_replicas_search_as_one(experiment, make_trainer, two_replicas, order) -> None:
    params = experiment(trainer=_darts(order))
    one, two = make_trainer(params), make_trainer(params, strategy=two_replicas)
    losses = []
    for trainer in (one, two):
        with trainer.strategy.scope():
            losses.append(float(trainer.train(tf.constant(6))["training_loss"]))
    rounding.assert_close(losses[1], losses[0], roundings=6 * 8)
    for alpha, mirrored in zip(one.alphas, two.alphas, strict=True):
        copies = [copy.numpy() for copy in mirrored.value.values]
        np.testing.assert_array_equal(*copies)
        rounding.assert_close(copies[0], alpha.numpy(), roundings=6 * 8, scale=1.0)
    assert one.export() == two.export()


def test_batch_norm_and_dropout_have_second_derivatives(experiment, make_trainer) -> None:
    task = {"batch_norm": True, "dropout_rate": 0.2}
    trainer = make_trainer(experiment(trainer=_darts("second"), task=task))
    assert np.isfinite(float(trainer.train(tf.constant(2))["arch_loss"]))
