import math
import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas, orbit
from official_lite.common import errors, preemption
from official_lite.core import train_lib
from official_lite.modeling.optimization import ema_optimizer


def _spos(**settings):
    return {"one_shot": {"reward": "mae", "reward_direction": "minimize", **settings}}


def test_spos_ranks_a_small_space_exhaustively_and_exports_the_best_architecture(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment("spos", trainer=_spos()))
    trainer.train(tf.constant(40))
    ranking = trainer.rank()
    assert len(ranking) == 9
    assert [score for score, _ in ranking] == sorted((s for s, _ in ranking), reverse=True)
    assert trainer.export() == trainer.export() == ranking[0][1]
    assert trainer.describe(trainer.picks()) == ranking[0][1]


def test_spos_evolution_exports_one_of_the_three_best_ranked_architectures(
    experiment, make_trainer
) -> None:
    spos = {"max_exhaustive": 4, "population": 6, "generations": 4}
    trainer = make_trainer(experiment("spos", trainer=_spos(spos=spos)))
    trainer.train(tf.constant(40))
    best = trainer.export()
    whole = make_trainer(experiment("spos", trainer=_spos()))
    whole.train(tf.constant(40))
    assert best in [arch for _, arch in whole.rank()[:3]]


@pytest.mark.slow
def test_evaluating_a_sampled_architecture_does_not_change_the_model(
    experiment, make_trainer
) -> None:
    params = experiment("spos", trainer=_spos(), task={"batch_norm": True})
    trainer = make_trainer(params)
    trainer.train(tf.constant(4))
    before = [v.numpy() for v in trainer.model.variables]
    trainer.rank()
    for variable, value in zip(trainer.model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_spos_ranks_architectures_with_the_averaged_weights_that_evaluations_use(
    experiment, make_trainer
) -> None:
    params = experiment("spos", trainer=_spos())
    params.override({"trainer": {"optimizer_config": {"ema": {"average_decay": 0.9}}}})
    trainer = make_trainer(params)
    trainer.train(tf.constant(10))
    ranking = trainer.rank()
    # Resuming training discards the previous ranking.
    trainer.train_loop_begin()
    with ema_optimizer.evaluated_state(trainer.optimizer):
        assert trainer.rank() == ranking


def test_calibration_recomputes_batch_norm_statistics_for_each_rated_architecture(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment("spos", trainer=_spos(), task={"batch_norm": True}))
    trainer.train(tf.constant(15))
    rankings = []
    for batches in (0, 8, 8):
        trainer.one_shot.spos.calibration_batches = batches
        # Resuming training discards the previous ranking.
        trainer.train_loop_begin()
        rankings.append(trainer.rank())
    assert rankings[0] != rankings[1]
    assert rankings[1] == rankings[2]


def test_spos_samples_training_paths_uniformly(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment("spos"))
    index = tf.function(lambda step: trainer.weight_draw(step).paths["first"])
    drawn = [int(index(tf.constant(s, tf.int64))) for s in range(300)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 300, 1 / 3, atol=0.1)


@pytest.mark.parametrize("mode", ["update", "freeze"])
def test_momentum_changes_weights_of_unsampled_paths_unless_they_are_frozen(
    mode, experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment("spos", trainer={"one_shot": {"idle_paths": mode}}))
    choice = next(layer for layer in trainer.model.layers if getattr(layer, "label", "") == "first")
    moved = []
    for step in range(8):
        path = int(trainer.weight_draw(tf.constant(step, tf.int64)).paths["first"])
        before = [w.numpy() for w in choice.candidates["tanh"].weights]
        trainer.train(tf.constant(1))
        after = [w.numpy() for w in choice.candidates["tanh"].weights]
        if path != 0:
            moved.append(not all(map(np.array_equal, before, after)))
    assert any(moved) == (mode == "update")


class Undefined(keras.layers.Layer):
    """A layer that multiplies its input by a factor only in evaluation."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def call(self, x, training=False):
        return x if training else x * self.factor


def _with_undefined_options(toy_task, *options):
    class Task(toy_task):
        def build_model(self):
            inputs = x = keras.Input((4,))
            for label in ("first", "second"):
                ops = {"nan": Undefined(math.nan), "inf": Undefined(math.inf)}
                ops["defined"] = keras.layers.Dense(4)
                x = nas.LayerChoice({name: ops[name] for name in options}, label=label)(x)
            return keras.Model(inputs, keras.layers.Dense(1)(x))

    return Task


@pytest.mark.parametrize(
    ("direction", "spos"),
    [
        ("minimize", {}),
        ("maximize", {"max_exhaustive": 1, "population": 16, "generations": 2}),
    ],
)
def test_architecture_without_a_finite_rating_is_never_exported(
    direction, spos, experiment, toy_task, make_trainer
) -> None:
    params = experiment("spos", trainer=_spos(spos=spos, reward_direction=direction))
    options = ("nan", "inf", "defined")
    trainer = make_trainer(params, task_cls=_with_undefined_options(toy_task, *options))
    trainer.train(tf.constant(2))
    assert trainer.export() == {"first": "defined", "second": "defined"}
    ratings = [rating for rating, _ in trainer.rank()]
    assert set(ratings[1:]) == {-math.inf}


def test_search_without_any_finite_rating_raises_diverged_error(
    experiment, toy_task, tmp_path
) -> None:
    task = _with_undefined_options(toy_task, "nan", "inf")
    params = experiment("spos", trainer={"train_steps": 2})
    with pytest.raises(errors.DivergedError, match="None of the 4 rated architectures"):
        train_lib.run_experiment(None, task(params.task), "train", params, str(tmp_path))
    assert not (tmp_path / "arch.json").exists()


def test_interrupted_search_ends_without_ranking_architectures(
    experiment, run_toy, tmp_path
) -> None:
    interrupt = orbit.hooks.LambdaHook(
        after_step=lambda hook: os.kill(os.getpid(), signal.SIGTERM), every_n_steps=4
    )
    params = experiment("spos", trainer={"train_steps": 1000})
    with preemption.catch_signals(), pytest.raises(errors.PreemptedError):
        run_toy(params, tmp_path, hooks=[interrupt])
    assert not (tmp_path / "arch.json").exists()


def test_evaluating_a_finished_search_suggests_training_the_found_architecture_instead(
    experiment, run_toy, tmp_path, caplog
) -> None:
    params = experiment("spos", trainer={"train_steps": 4})
    run_toy(params, tmp_path, mode="train_and_eval")
    assert "train a run whose `task.arch`" not in caplog.text
    run_toy(params, tmp_path, mode="eval")
    assert "train a run whose `task.arch`" in caplog.text
