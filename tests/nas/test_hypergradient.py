"""On functions whose gradients are known, among them the one of the paper on DARTS."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.nas import differentiable
from tests import rounding

ORDERS = {
    "second": differentiable.second_order,
    "finite_difference": differentiable.finite_difference,
}


def _variables():
    w = keras.Variable([[0.3, -0.2], [0.5, 0.7]], dtype="float32")
    alpha = keras.Variable([0.1, -0.4, 0.2], dtype="float32")
    return w, alpha


def _loss_fn(w, alpha):
    """A mixture of three operations, with values in the place of the weights if they are given."""

    def loss_fn(batch, weights=(), values=()):
        matrix = values[0] if values else tf.convert_to_tensor(w)
        x, y = batch
        hidden = tf.matmul(x, matrix)
        ops = [hidden, tf.tanh(hidden), tf.nn.softplus(hidden)]
        shares = tf.unstack(tf.nn.softmax(alpha))
        mixed = tf.add_n([share * op for share, op in zip(shares, ops, strict=True)])
        return tf.reduce_mean(tf.square(tf.reduce_sum(mixed, 1) - y))

    return loss_fn


def _batch(seed):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(5, 2)).astype(np.float32)
    return tf.constant(x), tf.constant(generator.normal(size=5).astype(np.float32))


def _unrolled_objective(alpha_value, learning_rate):
    """In float64 and by hand: the loss of one batch after a step on the other."""
    w, _ = _variables()
    matrix = tf.Variable(w.numpy().astype(np.float64))
    batches = [tuple(tf.cast(part, tf.float64) for part in _batch(seed)) for seed in (1, 2)]
    alpha = tf.constant(alpha_value, tf.float64)
    loss_fn = _loss_fn(matrix, alpha)
    with tf.GradientTape() as tape:
        loss = loss_fn(batches[0])
    step = tape.gradient(loss, matrix)
    return float(loss_fn(batches[1], [matrix], [matrix - learning_rate * step]))


@pytest.mark.parametrize(
    ("order", "in_graph"), [("second", False), ("second", True), ("finite_difference", True)]
)
def test_gradient_is_the_numeric_one_of_the_unrolled_loss(order, in_graph) -> None:
    w, alpha = _variables()

    def gradient():
        return ORDERS[order](
            _loss_fn(w, alpha),
            train=_batch(1),
            val=_batch(2),
            weights=[w],
            alphas=[alpha],
            learning_rate=0.5,
        )[0]

    found = (tf.function(gradient) if in_graph else gradient)()
    numeric = []
    for index in range(3):
        step = np.zeros(3)
        step[index] = 1e-5
        there, back = (_unrolled_objective(alpha.numpy() + sign * step, 0.5) for sign in (1, -1))
        numeric.append((there - back) / 2e-5)
    # Finite differences of a step of 0.01 have a relative error of the magnitude of 1e-4.
    np.testing.assert_allclose(found, numeric, rtol=2e-3, atol=2e-5)
    first = differentiable.first_order(_loss_fn(w, alpha), val=_batch(2), alphas=[alpha])[0]
    assert np.max(np.abs(first - numeric)) > 1e-2


@pytest.mark.sample(2)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("xi", [0.0, 0.3, 0.5, 0.6])
def test_fixed_point_is_that_of_the_paper(order, xi) -> None:
    """Of L_val = αw − 2α + 1 and L_train = w² − 2αw + α², from (2, −2)."""
    alpha, w = keras.Variable(2.0), keras.Variable(-2.0)

    def loss_fn(batch, weights=(), values=()):
        weight = values[0] if values else tf.convert_to_tensor(w)
        a = tf.convert_to_tensor(alpha)
        return a * weight - 2.0 * a + 1.0 if batch == "val" else tf.square(weight - a)

    @tf.function
    def step():
        gradient = ORDERS[order](
            loss_fn, train="train", val="val", weights=[w], alphas=[alpha], learning_rate=xi
        )[0]
        alpha.assign_sub(0.1 * gradient)
        with tf.GradientTape() as tape:
            loss = loss_fn("train")
        w.assign_sub(0.2 * tape.gradient(loss, w.value))

    for _ in range(300):
        step()
    wanted = 2.0 / (1.0 + 2.0 * xi)
    np.testing.assert_allclose([float(alpha), float(w)], [wanted, wanted], atol=2e-3)


@pytest.mark.parametrize("order", ORDERS)
def test_weights_are_never_written(order) -> None:
    """A virtual step that assigned weights, and did not, was NNI's mistake for years."""
    w, alpha = _variables()
    before = w.numpy()
    arguments = {"train": _batch(1), "val": _batch(2), "weights": [w], "alphas": [alpha]}
    near, far = (
        ORDERS[order](_loss_fn(w, alpha), learning_rate=rate, **arguments)[0].numpy()
        for rate in (0.0, 0.5)
    )
    np.testing.assert_array_equal(w.numpy(), before)
    first = differentiable.first_order(_loss_fn(w, alpha), val=_batch(2), alphas=[alpha])[0]
    # Five examples of two numbers.
    rounding.assert_close(near, first, roundings=5 * 2, scale=1.0)
    assert np.max(np.abs(near - far)) > 1e-2


@pytest.mark.parametrize("order", ORDERS)
def test_replicas_with_parts_of_the_batches_find_the_gradient_of_the_whole(
    order, two_replicas
) -> None:
    def gradient(train, val, share=1.0):
        loss_fn = _loss_fn(w, alpha)
        return ORDERS[order](
            lambda *args: share * loss_fn(*args),
            train=train,
            val=val,
            weights=[w],
            alphas=[alpha],
            learning_rate=0.5,
        )[0]

    def of_replica():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        train, val = ([part[replica] for part in batch] for batch in (trains, vals))
        return gradient(train, val, share=0.5)

    trains, vals = (
        [tf.stack(parts) for parts in zip(*map(_batch, seeds), strict=True)]
        for seeds in ((1, 3), (2, 4))
    )
    w, alpha = _variables()
    train, val = ([tf.concat(tf.unstack(part), 0) for part in batch] for batch in (trains, vals))
    whole = gradient(train, val)
    with two_replicas.scope():
        w, alpha = _variables()
    parts = two_replicas.run(tf.function(of_replica))
    found = two_replicas.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)
    # Two passes over ten examples of two numbers. Finite differences divide errors by 0.01.
    scale = np.max(np.abs(whole)) / (1.0 if order == "second" else 0.01)
    rounding.assert_close(found, whole, roundings=2 * 10 * 2, scale=scale)


def test_what_the_loss_does_not_depend_on_has_a_gradient_of_zero() -> None:
    w, alpha = _variables()
    other = keras.Variable([1.0])
    found = differentiable.first_order(_loss_fn(w, alpha), val=_batch(2), alphas=[alpha, other])
    assert float(found[1][0]) == 0.0
