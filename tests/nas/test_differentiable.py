import numpy as np
import pytest
import tensorflow as tf

from official_lite.core import trainer_factory
from official_lite.nas import differentiable, one_shot_trainer, resolution
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


@pytest.mark.slow
def test_a_step_of_length_zero_is_first_order(experiment, make_trainer) -> None:
    train, val = _batches()
    inputs = {one_shot_trainer.TRAIN: train, one_shot_trainer.VAL: val}
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


@trainer_factory.register_trainer_cls("test/branching_gumbel")
class Branching(differentiable.GumbelTrainer):
    """Parts that may be replaced have an `if` on tensors, which AutoGraph has to convert."""

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


def test_temperature_falls_in_a_line_to_the_last_step(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment("gumbel", trainer={"train_steps": 10}))
    steps = [0, 5, 10, 20]
    temperatures = [float(trainer.temperature(tf.constant(s, tf.int64))) for s in steps]
    assert temperatures == pytest.approx([5.0, 2.75, 0.5, 0.5])


@pytest.mark.parametrize("hard", [False, True])
def test_both_kinds_learn(hard, experiment, make_trainer) -> None:
    params = experiment("gumbel", trainer={"one_shot": {"gumbel": {"hard": hard}}})
    trainer = make_trainer(params)
    before = [alpha.numpy().tolist() for alpha in trainer.alphas]
    trainer.train(tf.constant(4))
    assert [alpha.numpy().tolist() for alpha in trainer.alphas] != before


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "execution"), [("test/branching_gumbel", "graph"), ("test/branching_draws", "xla")]
)
def test_parts_that_are_replaced_may_branch_on_tensors(
    name, execution, experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(name, runtime={"execution": execution}))
    before = [alpha.numpy().tolist() for alpha in trainer.alphas]
    trainer.train(tf.constant(1))
    assert [alpha.numpy().tolist() for alpha in trainer.alphas] == before
    trainer.train(tf.constant(3))
    assert [alpha.numpy().tolist() for alpha in trainer.alphas] != before


def test_weights_learn_on_one_path_and_the_architecture_behind_gates(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment("proxyless"))
    step = tf.constant(3, tf.int64)
    arch, weights = trainer.arch_draw(step), trainer.weight_draw(step)
    assert (arch.gates, weights.gates) == (True, False)
    assert set(arch.paths) == {"first", "second"}


def test_paths_are_drawn_by_what_is_preferred(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment("proxyless"))
    for alpha in trainer.alphas:
        alpha.assign([-20.0, 20.0, -20.0])
    for step in range(5):
        draw = trainer.weight_draw(tf.constant(step, tf.int64))
        assert [int(index) for index in draw.paths.values()] == [1, 1]
    assert trainer.export() == {"first": "linear", "second": "linear"}


def test_a_step_changes_the_weights_of_its_path_only(experiment, make_trainer) -> None:
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
