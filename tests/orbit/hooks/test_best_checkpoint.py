import json
import math
import os

import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.modeling import optimization
from official_lite.orbit import hooks


@pytest.fixture
def run(make_scripted_trainer, make_controller, make_manager):
    """Trains to `steps` with an evaluation every 10 steps, whose accuracy is scripted."""

    def run(accuracies, steps, interval=10, **arguments):
        trainer = make_scripted_trainer(lambda step: {"accuracy": accuracies[step], "loss": step})
        hook = hooks.BestCheckpoint("accuracy", **arguments)
        controller = make_controller(
            trainer, hooks=[hook], checkpoint_manager=make_manager(trainer, interval)
        )
        controller.train_and_evaluate(steps, eval_interval=10)

    return run


def _checkpoints(tmp_path):
    return sorted(path.stem for path in (tmp_path / "model/best_ckpt").glob("*.index"))


def test_best_is_kept_with_its_metrics(run, tmp_path):
    run({10: 0.5, 20: 0.9, 30: 0.7}, 30)
    assert _checkpoints(tmp_path) == ["best_ckpt-20"]
    info = json.loads((tmp_path / "model/best_ckpt/info.json").read_text())
    assert (info["best_ckpt_global_step"], info["accuracy"], info["loss"]) == (20, 0.9, 20)


def test_best_ones_before_may_be_kept_too(run, tmp_path):
    run({10: 0.5, 20: 0.7, 30: 0.9}, 30, max_to_keep=2)
    assert _checkpoints(tmp_path) == ["best_ckpt-20", "best_ckpt-30"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_never_best(run, tmp_path, value):
    run({10: 0.5, 20: value, 30: value}, 30)
    assert _checkpoints(tmp_path) == ["best_ckpt-10"]


def test_restarted_run_does_not_replace_a_better_one(run, tmp_path):
    run({10: 0.5, 20: 0.9}, 20)
    run({20: 0.9, 30: 0.7, 40: 0.8}, 40)
    assert _checkpoints(tmp_path) == ["best_ckpt-20"]


def test_run_that_starts_over_keeps_the_best_of_before_until_it_has_one(run, tmp_path):
    run({10: 0.5, 20: 0.9}, 20, interval=None)
    run({10: math.nan}, 10, interval=None)
    assert _checkpoints(tmp_path) == ["best_ckpt-20"]
    run({10: 0.7, 20: 0.6}, 20, interval=None)
    assert _checkpoints(tmp_path) == ["best_ckpt-10"]
    assert json.loads((tmp_path / "model/best_ckpt/info.json").read_text())["accuracy"] == 0.7


def test_best_value_is_in_the_checkpoints_too(run, tmp_path):
    run({10: 0.5, 20: 0.9}, 20)
    os.remove(tmp_path / "model/best_ckpt/info.json")
    run({30: 0.7}, 30)
    assert _checkpoints(tmp_path) == ["best_ckpt-20"]


def test_lower_may_be_better(run, tmp_path):
    run({10: 0.5, 20: 0.2, 30: 0.7}, 30, direction="minimize")
    assert _checkpoints(tmp_path) == ["best_ckpt-20"]


def test_average_that_was_evaluated_is_saved(make_keras_trainer, make_controller, tmp_path):
    trainer = make_keras_trainer(
        lambda: optimization.ExponentialMovingAverage(keras.optimizers.SGD(0.1), 0.5)
    )
    average = trainer.optimizer
    average.shadow_copy(trainer.model)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=trainer.model), str(tmp_path), max_to_keep=1
    )
    hook = hooks.BestCheckpoint("loss", "minimize")
    controller = make_controller(trainer, hooks=[hook], checkpoint_manager=manager)
    controller.train_and_evaluate(3)
    trained = trainer.model.get_weights()[0].item()
    average.swap_weights()
    averaged = trainer.model.get_weights()[0].item()
    manager.checkpoint.restore(tf.train.latest_checkpoint(str(tmp_path / "best_ckpt")))
    assert trainer.model.get_weights()[0].item() == averaged != trained


def test_two_replicas(make_keras_trainer, make_controller, two_replicas, tmp_path):
    trainer = make_keras_trainer(strategy=two_replicas)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=trainer.model), str(tmp_path / "model"), max_to_keep=1
    )
    controller = make_controller(
        trainer,
        hooks=[hooks.BestCheckpoint("loss", "minimize")],
        checkpoint_manager=manager,
        strategy=two_replicas,
    )
    controller.train_and_evaluate(4, eval_interval=2)
    assert _checkpoints(tmp_path) == ["best_ckpt-4"]


def test_without_a_manager_it_is_refused(make_trainer, make_controller):
    controller = make_controller(make_trainer(), hooks=[hooks.BestCheckpoint("accuracy")])
    with pytest.raises(errors.ConfigValueError, match="`checkpoint_manager`"):
        controller.train(1)
