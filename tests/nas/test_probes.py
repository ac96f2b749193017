import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.common import errors
from official_lite.core import base_task
from official_lite.nas import probes
from tests import rounding

# Three layers sum over four inputs, and the loss sums over six examples.
ROUNDINGS = 3 * 4 * 6
# Three layers sum over four inputs, and the reward averages four examples.
REWARD_ROUNDINGS = 3 * 4 * 4


def _random_batch():
    generator = np.random.default_rng(0)
    return (
        tf.constant(generator.normal(size=(6, 4)).astype(np.float32)),
        tf.constant(generator.normal(size=(6, 1)).astype(np.float32)),
    )


def test_computing_the_loss_of_an_architecture_leaves_all_model_variables_unchanged(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(task={"batch_norm": True, "dropout_rate": 0.5}))
    before = [v.numpy() for v in trainer.model.variables]
    compiled = tf.function(lambda batch: trainer.strategy.run(trainer.loss, args=(batch,)))
    assert float(compiled(_random_batch())) > 0.0
    for variable, value in zip(trainer.model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_loss_of_an_architecture_includes_the_regularization_losses_of_layers(
    experiment, make_trainer
) -> None:
    plain, decayed = (make_trainer(experiment(task={"l2": l2})) for l2 in (0.0, 0.5))
    decayed.model.set_weights(plain.model.get_weights())
    for (_, one), (_, other) in zip(plain.resolved, decayed.resolved, strict=True):
        other.alpha.assign(one.alpha)
    kernels = [w for w in decayed.model.weights if w.regularizer]
    wanted = 0.5 * sum(float(np.sum(np.square(k.numpy()))) for k in kernels)
    assert wanted > 0.0
    losses = [float(t.strategy.run(t.loss, args=(_random_batch(),))) for t in (plain, decayed)]
    rounding.assert_close(losses[1] - losses[0], wanted, roundings=ROUNDINGS, scale=losses[1])


def test_loss_of_an_architecture_can_be_computed_with_substituted_weight_values(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(task={"l2": 0.1}))
    weights = trainer.model.trainable_variables
    values = [tf.convert_to_tensor(w) * 2.0 for w in weights]
    there = float(trainer.strategy.run(trainer.loss, args=(_random_batch(), weights, values)))
    for weight, value in zip(weights, values, strict=True):
        weight.assign(value)
    here = trainer.strategy.run(trainer.loss, args=(_random_batch(),))
    rounding.assert_close(there, here, roundings=ROUNDINGS)


def test_architecture_search_raises_if_train_step_returns_no_loss(experiment, toy_task) -> None:
    class Silent(toy_task):
        def train_step(self, inputs, model, optimizer, metrics=None):
            return {"other": tf.constant(0.0)}

    task = Silent(experiment().task)
    probe = probes.LossProbe(task, task.build_model(), None)
    with pytest.raises(
        errors.ConfigValueError, match=r"returns \['other'\]; it must also return 'loss'"
    ):
        probe(_random_batch())


def _reward(trainer, **kwargs):
    reward = probes.Reward(trainer.task, trainer.model, **kwargs)
    return reward, tf.function(lambda batch: trainer.strategy.run(reward.of_batch, args=(batch,)))


def _batch():
    return tf.ones([4, 4]), tf.zeros([4, 1])


def test_search_reward_is_the_signed_metric_or_by_default_the_negative_loss(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment())
    error = float(tf.reduce_mean(tf.abs(trainer.model(_batch()[0]))))
    loss = float(tf.reduce_mean(tf.square(trainer.model(_batch()[0]))))
    for kwargs, expected in (
        ({}, -loss),
        ({"metric": "mae"}, -error),
        ({"metric": "mae", "direction": "maximize"}, error),
        ({"metric": "mae", "direction": "minimize"}, -error),
    ):
        reward, of_batch = _reward(trainer, **kwargs)
        for _ in range(2):
            rounding.assert_close(of_batch(_batch()), expected, roundings=REWARD_ROUNDINGS)
        # Computing the reward does not update the metric.
        assert float(reward._metrics[0].result()) == 0.0


def test_search_reward_uses_only_its_own_batch_and_does_not_update_task_metrics(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment())
    # A task may return the same metric object every time; evaluations then update it as well.
    kept = keras.metrics.MeanAbsoluteError(name="mae")
    trainer.task.build_metrics = lambda training=True: [kept]
    _, of_batch = _reward(trainer, metric="mae")
    first = float(of_batch(_batch()))
    kept.update_state(tf.zeros([4, 1]), tf.fill([4, 1], 100.0))
    rounding.assert_close(of_batch(_batch()), first, roundings=REWARD_ROUNDINGS)
    assert float(kept.result()) == 100.0


def test_creating_a_search_reward_keeps_the_metric_attributes_of_the_task(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment())
    task = trainer.task
    task.own = kept = keras.metrics.Mean()

    def build_metrics(training=True):
        task.own = keras.metrics.Mean()
        return []

    task.build_metrics = build_metrics
    _reward(trainer)
    assert task.own is kept


def test_all_replicas_receive_the_search_reward_averaged_over_replicas(
    experiment, make_trainer, two_replicas
) -> None:
    trainer = make_trainer(experiment(), strategy=two_replicas)
    with two_replicas.scope():
        reward = probes.Reward(trainer.task, trainer.model)
    labels = (1.0, 5.0)
    batches = two_replicas.experimental_distribute_values_from_function(
        lambda context: tf.fill([4, 1], labels[context.replica_id_in_sync_group])
    )
    run = tf.function(lambda y: two_replicas.run(reward.of_batch, args=((tf.ones([4, 4]), y),)))
    found = two_replicas.experimental_local_results(run(batches))
    output = trainer.model(tf.ones([1, 4]))
    wanted = -np.mean([np.square(output - label) for label in labels])
    rounding.assert_close(found, [wanted, wanted], roundings=REWARD_ROUNDINGS)


def test_reward_of_a_compiled_model_is_its_negative_compiled_loss(
    experiment, make_trainer, monkeypatch
) -> None:
    trainer = make_trainer(experiment())
    _, of_batch = _reward(trainer)
    wanted = float(of_batch(_batch()))
    monkeypatch.setattr(type(trainer.task), "build_losses", base_task.Task.build_losses)
    trainer.model.compile(loss="mse")
    _, of_batch = _reward(trainer)
    rounding.assert_close(of_batch(_batch()), wanted, roundings=REWARD_ROUNDINGS)
    probe = tf.function(lambda batch: trainer.strategy.run(trainer.loss, args=(batch,)))
    rounding.assert_close(probe(_batch()), -wanted, roundings=REWARD_ROUNDINGS)


def _model() -> keras.Model:
    inputs = keras.Input((4,))
    inner = nas.LayerChoice(
        {"big": keras.layers.Dense(4), "skip": keras.layers.Identity()}, label="in"
    )
    outer = nas.LayerChoice(
        {"deep": keras.Sequential([inner, keras.layers.Dense(4)]), "skip": keras.layers.Identity()},
        label="out",
    )
    x = outer(inputs)
    x = nas.Repeat(lambda index: keras.layers.Dense(4), (1, 3), label="depth")(x)
    return keras.Model(inputs, x)


def _cost(model, picks, **config) -> float:
    settings = {"weight": 1.0, "unit": 1.0, **config}
    return probes.Penalty(model, nas.PenaltyConfig(settings)).of(picks)


@pytest.mark.parametrize(
    ("picks", "wanted"),
    [
        ({"out": 0, "in": 0, "depth": 1}, 80),
        ({"out": 0, "in": 1, "depth": 0}, 40),
        ({"out": 1, "in": 0, "depth": 2}, 60),
    ],
)
def test_parameter_cost_equals_the_parameter_count_of_the_fixed_model(picks, wanted) -> None:
    model = _model()
    assert _cost(model, picks) == wanted
    # By default, the most expensive architecture costs 1.
    assert _cost(model, picks, unit=0.0) == pytest.approx(wanted / 100)
    space = {"out": ["deep", "skip"], "in": ["big", "skip"], "depth": [1, 2, 3]}
    arch = {label: space[label][index] for label, index in picks.items()}
    assert nas.fixed_model(model, arch).count_params() == wanted


def test_expected_cost_is_differentiable_in_the_option_probabilities() -> None:
    cost = probes.Penalty(_model(), nas.PenaltyConfig({"weight": 2.0, "unit": 20.0}))
    probs = {
        "out": tf.constant([0.5, 0.5]),
        "in": tf.constant([0.5, 0.5]),
        "depth": tf.constant([1.0, 0.0, 0.0]),
    }
    with tf.GradientTape() as tape:
        tape.watch(probs)
        expected = cost(probs)
    # The cost of one block, half of the dense layer and a quarter of the inner layer.
    rounding.assert_close(expected, 2.0 * (1.0 + 0.5 + 0.25), roundings=3)
    rounding.assert_close(tape.gradient(expected, probs)["in"], [1.0, 0.0], roundings=3)


def test_cost_table_sets_option_costs_and_an_invalid_table_is_refused() -> None:
    table = {
        "out": {"deep": 5, "skip": 1},
        "in": {"big": 2, "skip": 0},
        "depth": {1: 1, 2: 2, 3: 3},
    }
    picks = {"out": 0, "in": 0, "depth": 1}
    assert _cost(_model(), picks, resource="table", table=table) == 9.0
    for wrong, named in (
        ({"in": None}, "'in'"),
        ({"outt": {"a": 1}}, "'outt'.*not have"),
        ({"in": {"big": 2}}, "no cost for 'skip'"),
        ({"in": {"big": 2, "skip": math.inf}}, "finite cost"),
    ):
        rest = {label: row for label, row in {**table, **wrong}.items() if row}
        with pytest.raises(errors.ConfigValueError, match=named):
            _cost(_model(), picks, resource="table", table=rest)


def test_flops_cost_counts_the_operations_of_the_chosen_option() -> None:
    inputs = keras.Input((8, 8, 2))
    ops = {
        "conv": keras.layers.Conv2D(2, 3, padding="same", use_bias=False),
        "skip": keras.layers.Identity(),
    }
    model = keras.Model(inputs, nas.LayerChoice(ops, label="op")(inputs))
    assert _cost(model, {"op": 0}, resource="flops") == 2 * 8 * 8 * 9 * 2 * 2
    assert _cost(model, {"op": 1}, resource="flops") == 0
    inputs = keras.Input((None, 8, 2))
    unsized = keras.Model(inputs, nas.LayerChoice(ops, label="op")(inputs))
    for uncountable, named in ((_model(), "'out'.*other choices"), (unsized, r"'op'.* axes \[1\]")):
        with pytest.raises(errors.ConfigValueError, match=named):
            _cost(uncountable, {}, resource="flops")


def test_cost_penalty_makes_a_search_prefer_cheap_options(experiment, make_trainer) -> None:
    for name in ("darts", "proxyless"):
        settings = {"penalty": {"weight": 100.0}, "arch_learning_rate": 0.1}
        trainer = make_trainer(experiment(name, trainer={"one_shot": settings}))
        trainer.train(tf.constant(30))
        assert trainer.export() == {"first": "zero", "second": "zero"}, name
