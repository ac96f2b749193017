import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.common import errors
from official_lite.nas import enas
from tests import rounding

SIZES = {"first": 3, "second": 2}


@pytest.fixture
def lstm():
    keras.utils.set_random_seed(0)
    return enas.LstmController(SIZES, units=8, tanh_constant=1.5)


def _along(**indices):
    return lambda label, logits: tf.constant(indices[label])


def test_lstm_path_probabilities_sum_to_one_and_logits_stay_within_tanh_constant(lstm) -> None:
    walks = [lstm.walk(_along(first=i, second=j)) for i in range(3) for j in range(2)]
    # The sum is over six paths with two logarithms each.
    rounding.assert_close(sum(np.exp(walk.log_prob) for walk in walks), 1.0, roundings=6 * 2)
    # The logits of a later label depend on the options chosen for earlier labels.
    np.testing.assert_array_equal(walks[0].logits["first"], walks[-1].logits["first"])
    assert not np.allclose(walks[0].logits["second"], walks[-1].logits["second"])
    with tf.GradientTape() as tape:
        loss = lstm.walk(_along(first=1, second=1)).log_prob
    gradients = tape.gradient(loss, [v.value for v in lstm.variables])
    unused = [v.name for v, g in zip(lstm.variables, gradients, strict=True) if g is None]
    # No label follows the last label, so the embedding of its options is unused.
    assert unused == ["enas_embedding_1"]
    for variable in lstm.variables:
        variable.assign(100.0 * variable)
    walk = lstm.walk(_along(first=0, second=0))
    assert max(float(tf.reduce_max(tf.abs(one))) for one in walk.logits.values()) <= 1.5
    assert 0.0 < float(walk.entropy) < np.log(6.0)


def _bandit(experiment, make_trainer, reward_of, **enas):
    """Build an ENAS trainer whose reward depends only on the path."""
    settings = {"arch_learning_rate": 0.05, "arch_weight_decay": 0.0, "enas": enas}
    trainer = make_trainer(experiment("enas", trainer={"one_shot": settings}))
    trainer._rate = lambda paths, batch: reward_of(paths)
    return trainer


def test_enas_controller_learns_the_path_with_the_highest_reward(experiment, make_trainer) -> None:
    def reward_of(paths):
        hits = [tf.equal(paths["first"], 1), tf.equal(paths["second"], 0)]
        return tf.add_n([tf.cast(hit, tf.float32) for hit in hits])

    trainer = _bandit(experiment, make_trainer, reward_of, samples=4)
    trainer.train(tf.constant(150))
    assert trainer.export() == {"first": "linear", "second": "tanh"}
    assert min(max(p) for p in trainer.probs().values()) > 0.9


def test_lstm_controller_learns_a_reward_for_combinations_of_options(
    experiment, make_trainer
) -> None:
    def reward_of(paths):
        return tf.cast(tf.equal(paths["first"], (paths["second"] + 1) % 3), tf.float32)

    trainer = _bandit(experiment, make_trainer, reward_of, samples=4, controller="lstm")
    trainer.train(tf.constant(200))
    names = ["tanh", "linear", "zero"]
    found = trainer.export()
    assert names.index(found["first"]) == (names.index(found["second"]) + 1) % 3
    assert [sum(p) for p in trainer.probs().values()] == pytest.approx([1.0, 1.0])


def test_skip_penalty_drives_the_number_of_chosen_inputs_to_skip_target(
    make_trainer, toy_task, experiment
) -> None:
    settings = {
        "arch_learning_rate": 0.1,
        "arch_weight_decay": 0.0,
        "enas": {"skip_weight": 1.0, "skip_target": 0.2, "samples": 2},
    }

    class AnyInputs(toy_task):
        def build_model(self):
            inputs = keras.Input((4,))
            branches = [keras.layers.Dense(4)(inputs) for _ in range(3)]
            x = nas.InputChoice(3, None, label="inputs")(branches)
            return keras.Model(inputs, keras.layers.Dense(1)(x))

    params = experiment("enas", trainer={"one_shot": settings})
    trainer = make_trainer(params, task_cls=AnyInputs)
    trainer._rate = lambda paths, batch: tf.constant(0.0)
    trainer.train(tf.constant(120))
    # At least one input is always chosen, so 0.2 of three inputs means one input.
    assert len(trainer.export()["inputs"]) == 1
    probs = dict(zip(map(str, trainer.space["inputs"]), trainer.probs()["inputs"], strict=True))
    assert sum(p for name, p in probs.items() if "," not in name) > 0.9


def test_first_reward_initializes_the_reward_baseline_of_the_controller(
    experiment, make_trainer
) -> None:
    def reward_of(paths):
        return tf.constant(7.0)

    trainer = _bandit(experiment, make_trainer, reward_of, entropy_weight=0.0)
    start = [alpha.numpy() for alpha in trainer.alphas]
    trainer.train(tf.constant(1))
    assert float(trainer._baseline.numpy()) == 7.0
    # The reward equals the baseline, so the controller does not change.
    np.testing.assert_array_equal([alpha.numpy() for alpha in trainer.alphas], start)


def test_enas_controller_avoids_paths_with_a_non_finite_reward(experiment, make_trainer) -> None:
    def reward_of(paths):
        reward = tf.gather([math.nan, math.inf, -math.inf], paths["second"])
        return tf.where(tf.equal(paths["first"], 0), reward, 0.5)

    trainer = _bandit(experiment, make_trainer, reward_of, entropy_weight=0.0)
    trainer.alphas[0].assign([1.0, 0.0, 0.0])
    trainer.train(tf.constant(60))
    assert float(trainer._baseline.numpy()) == 0.5
    assert trainer.export()["first"] != "tanh"
    assert trainer.probs()["first"][0] < 0.2


def test_controller_every_sets_the_interval_of_controller_updates(experiment, make_trainer) -> None:
    params = experiment("enas", trainer={"one_shot": {"enas": {"controller_every": 3}}})
    trainer = make_trainer(params)
    trainer.train(tf.constant(7))
    assert int(trainer.arch_optimizer.iterations.numpy()) == 3


def test_entropy_bonus_flattens_the_option_probabilities(experiment, make_trainer) -> None:
    trainer = _bandit(experiment, make_trainer, lambda paths: tf.constant(0.0), entropy_weight=1.0)
    trainer.alphas[0].assign([3.0, 0.0, 0.0])
    trainer.train(tf.constant(40))
    assert max(trainer.probs()["first"]) < 0.8


def test_error_for_an_unknown_reward_metric_suggests_the_most_similar_metric(
    experiment, make_trainer
) -> None:
    with pytest.raises(errors.ConfigValueError, match=r"`one_shot\.reward` is 'mea'.*`mae`"):
        make_trainer(experiment("enas", trainer={"one_shot": {"reward": "mea"}}))
