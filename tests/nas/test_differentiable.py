"""Architecture gradients of functions with known gradients, such as the DARTS paper's example."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.core import trainer_factory
from official_lite.nas import differentiable, one_shot_trainer, resolution
from tests import rounding


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
    """Take one SGD step on the weights, compute the validation loss and restore the weights."""
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


def test_second_order_gradient_of_a_task_matches_the_numeric_gradient(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(trainer=_darts("second", 0.3), task={"l2": 0.05}))
    train, val = _batches()
    found = _gradients(trainer, {one_shot_trainer.TRAIN: train, one_shot_trainer.VAL: val})
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


def _scaled_loss(toy_task, factor):
    class Scaled(toy_task):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            return factor * super().build_losses(labels, model_outputs, aux_losses)

    return Scaled


@pytest.mark.sample(1)
@pytest.mark.parametrize("order", ["first", "second", "finite_difference"])
def test_alpha_is_trained_in_float16_even_if_its_gradients_underflow_without_loss_scaling(
    order, experiment, make_trainer, toy_task
) -> None:
    found = []
    for dtype, policy in (("float32", "float32"), ("float16", "mixed_float16")):
        keras.mixed_precision.set_dtype_policy(policy)
        params = experiment(trainer=_darts(order), runtime={"mixed_precision_dtype": dtype})
        trainer = make_trainer(params, task_cls=_scaled_loss(toy_task, 1e-8))
        train, val = _batches()
        inputs = {one_shot_trainer.TRAIN: train, one_shot_trainer.VAL: val}
        found.append(_gradients(trainer, inputs))
    np.testing.assert_allclose(found[1], found[0], rtol=0.05, atol=0.01 * np.abs(found[0]).max())


def test_alpha_stays_unchanged_if_its_float16_gradient_overflows(
    experiment, make_trainer, toy_task, two_replicas
) -> None:
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    params = experiment(runtime={"mixed_precision_dtype": "float16"})
    trainer = make_trainer(params, strategy=two_replicas, task_cls=_scaled_loss(toy_task, 1e9))
    before = [alpha.numpy() for alpha in trainer.alphas]
    with two_replicas.scope():
        trainer.train(tf.constant(1))
    np.testing.assert_array_equal([alpha.numpy() for alpha in trainer.alphas], before)


def test_second_order_darts_has_a_finite_loss_with_batch_norm_and_dropout(
    experiment, make_trainer
) -> None:
    task = {"batch_norm": True, "dropout_rate": 0.2}
    trainer = make_trainer(experiment(trainer=_darts("second"), task=task))
    assert np.isfinite(float(trainer.train(tf.constant(2))["arch_loss"]))


@trainer_factory.register_trainer_cls("test/branching_gumbel")
class Branching(differentiable.GumbelTrainer):
    """A trainer whose overridden methods have an `if` on tensors, which AutoGraph must convert."""

    def is_arch_step_due(self, step):
        if step < 0:
            step = -step
        return step >= 1

    def temperature(self, step):
        if step > 2:
            step = tf.constant(2, step.dtype)
        return 1.0 / tf.cast(1 + step, tf.float32)

    def arch_gradients(self, inputs):
        gradients = super().arch_gradients(inputs)
        if tf.reduce_sum(gradients[0]) > 1e6:
            gradients = [tf.zeros_like(gradient) for gradient in gradients]
        return gradients


@trainer_factory.register_trainer_cls("test/branching_draws")
class BranchingDraws(Branching):
    def arch_draw(self, step):
        if step < 0:
            step = -step
        return super().arch_draw(step)

    def weight_draw(self, step):
        if step < 0:
            step = -step
        return super().weight_draw(step)


def test_gumbel_temperature_falls_linearly_to_the_last_step(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment("gumbel", trainer={"train_steps": 10}))
    steps = [0, 5, 10, 20]
    temperatures = [float(trainer.temperature(tf.constant(s, tf.int64))) for s in steps]
    assert temperatures == pytest.approx([5.0, 2.75, 0.5, 0.5])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "execution"), [("test/branching_gumbel", "graph"), ("test/branching_draws", "xla")]
)
def test_overridden_search_methods_may_branch_on_tensors(
    name, execution, experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(name, runtime={"execution": execution}))
    before = [alpha.numpy().tolist() for alpha in trainer.alphas]
    trainer.train(tf.constant(1))
    assert [alpha.numpy().tolist() for alpha in trainer.alphas] == before
    trainer.train(tf.constant(3))
    assert [alpha.numpy().tolist() for alpha in trainer.alphas] != before


def test_proxyless_uses_gates_for_architecture_steps_but_not_for_weight_steps(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment("proxyless"))
    step = tf.constant(3, tf.int64)
    arch, weights = trainer.arch_draw(step), trainer.weight_draw(step)
    assert (arch.gates, weights.gates) == (True, False)
    assert set(arch.paths) == {"first", "second"}


def test_proxyless_samples_paths_according_to_alpha(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment("proxyless"))
    for alpha in trainer.alphas:
        alpha.assign([-20.0, 20.0, -20.0])
    for step in range(5):
        draw = trainer.weight_draw(tf.constant(step, tf.int64))
        assert [int(index) for index in draw.paths.values()] == [1, 1]
    assert trainer.export() == {"first": "linear", "second": "linear"}


def test_search_step_with_freeze_idle_changes_only_the_weights_of_the_sampled_candidate(
    experiment, make_trainer
) -> None:
    params = experiment("proxyless", trainer={"one_shot": {"idle_paths": "freeze"}})
    trainer = make_trainer(params)
    trainer.train(tf.constant(2))
    choice = next(layer for layer in trainer.model.layers if getattr(layer, "label", "") == "first")
    before = {n: [w.numpy() for w in c.weights] for n, c in choice.candidates.items()}
    alphas = [alpha.numpy() for alpha in trainer.alphas]
    trainer.arch_optimizer.learning_rate = 0.0
    path = trainer.weight_draw(trainer.global_step.read_value()).paths["first"]
    trainer.train(tf.constant(1))
    changed = {
        name: any(
            not np.array_equal(w.numpy(), b) for w, b in zip(c.weights, before[name], strict=True)
        )
        for name, c in choice.candidates.items()
    }
    drawn = choice.options[int(path)]
    assert not any(value for name, value in changed.items() if name != drawn)
    np.testing.assert_allclose([alpha.numpy() for alpha in trainer.alphas], alphas, atol=1e-6)
    assert resolution.current_draw() is None


ORDERS = {
    "second": differentiable.second_order,
    "finite_difference": differentiable.finite_difference,
}


def _variables():
    w = keras.Variable([[0.3, -0.2], [0.5, 0.7]], dtype="float32")
    alpha = keras.Variable([0.1, -0.4, 0.2], dtype="float32")
    return w, alpha


def _loss_fn(w, alpha):
    """Return the loss of a mixture of three operations; `values`, if any, replace the weights."""

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
    """Compute the validation loss after one SGD step on the training batch, in float64."""
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
def test_architecture_gradient_matches_the_numeric_gradient_of_the_unrolled_loss(
    order, in_graph
) -> None:
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
    # Finite differences with a step of 0.01 have a relative error of about 1e-4.
    np.testing.assert_allclose(found, numeric, rtol=2e-3, atol=2e-5)
    first = differentiable.first_order(_loss_fn(w, alpha), val=_batch(2), alphas=[alpha])[0]
    assert np.max(np.abs(first - numeric)) > 1e-2


@pytest.mark.parametrize(("order", "xi"), [("second", 0.0), ("finite_difference", 0.5)])
def test_second_order_darts_converges_to_the_fixed_point_given_in_the_paper(order, xi) -> None:
    """L_val = αw − 2α + 1 and L_train = w² − 2αw + α², starting from (α, w) = (2, −2)."""
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
def test_architecture_gradient_leaves_the_weights_unchanged(order) -> None:
    """NNI's virtual step seemed to change the weights but, for years, had no effect."""
    w, alpha = _variables()
    before = w.numpy()
    arguments = {"train": _batch(1), "val": _batch(2), "weights": [w], "alphas": [alpha]}
    near, far = (
        ORDERS[order](_loss_fn(w, alpha), learning_rate=rate, **arguments)[0].numpy()
        for rate in (0.0, 0.5)
    )
    np.testing.assert_array_equal(w.numpy(), before)
    first = differentiable.first_order(_loss_fn(w, alpha), val=_batch(2), alphas=[alpha])[0]
    # The loss sums over five examples of two numbers.
    rounding.assert_close(near, first, roundings=5 * 2, scale=1.0)
    assert np.max(np.abs(near - far)) > 1e-2


@pytest.mark.parametrize("order", ORDERS)
def test_architecture_gradient_summed_over_replicas_equals_the_whole_batch_gradient(
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
    # Two passes sum over ten examples of two numbers. Finite differences divide errors by 0.01.
    scale = np.max(np.abs(whole)) / (1.0 if order == "second" else 0.01)
    rounding.assert_close(found, whole, roundings=2 * 10 * 2, scale=scale)


def test_alpha_without_influence_on_the_loss_has_a_zero_gradient() -> None:
    w, alpha = _variables()
    other = keras.Variable([1.0])
    found = differentiable.first_order(_loss_fn(w, alpha), val=_batch(2), alphas=[alpha, other])
    assert float(found[1][0]) == 0.0
