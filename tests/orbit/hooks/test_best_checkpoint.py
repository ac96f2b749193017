import json
import math
import os

import keras
import pytest
import tensorflow as tf

from official_lite.modeling import optimization
from official_lite.orbit import hooks


@pytest.fixture
def run(make_scripted_trainer, make_controller, make_manager):
    """Return a function that trains to `steps` with a scripted evaluation every 10 steps."""

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


def test_best_checkpoint_is_kept_with_its_metrics(run, tmp_path):
    run({10: 0.5, 20: 0.9, 30: 0.7}, 30)
    assert _checkpoints(tmp_path) == ["best_ckpt-20"]
    info = json.loads((tmp_path / "model/best_ckpt/info.json").read_text())
    assert (info["best_ckpt_global_step"], info["accuracy"], info["loss"]) == (20, 0.9, 20)


def test_previous_best_checkpoints_are_kept_up_to_max_to_keep(run, tmp_path):
    run({10: 0.5, 20: 0.7, 30: 0.9}, 30, max_to_keep=2)
    assert _checkpoints(tmp_path) == ["best_ckpt-20", "best_ckpt-30"]


def test_non_finite_metric_is_never_the_best(run, tmp_path):
    run({10: 0.5, 20: math.nan, 30: math.inf}, 30)
    assert _checkpoints(tmp_path) == ["best_ckpt-10"]


def test_restarted_run_does_not_replace_a_better_checkpoint(run, tmp_path):
    run({10: 0.5, 20: 0.9}, 20)
    run({20: 0.9, 30: 0.7, 40: 0.8}, 40)
    assert _checkpoints(tmp_path) == ["best_ckpt-20"]


def test_new_run_keeps_the_previous_best_checkpoint_until_it_saves_its_own(run, tmp_path):
    run({10: 0.5, 20: 0.9}, 20, interval=None)
    run({10: math.nan}, 10, interval=None)
    assert _checkpoints(tmp_path) == ["best_ckpt-20"]
    run({10: 0.7, 20: 0.6}, 20, interval=None)
    assert _checkpoints(tmp_path) == ["best_ckpt-10"]
    assert json.loads((tmp_path / "model/best_ckpt/info.json").read_text())["accuracy"] == 0.7


def test_resumed_run_restores_the_best_metric_value_if_the_info_file_is_missing(run, tmp_path):
    run({10: 0.5, 20: 0.9}, 20)
    os.remove(tmp_path / "model/best_ckpt/info.json")
    run({30: 0.7}, 30)
    assert _checkpoints(tmp_path) == ["best_ckpt-20"]


def test_minimize_direction_keeps_the_checkpoint_with_the_lowest_metric(run, tmp_path):
    run({10: 0.5, 20: 0.2, 30: 0.7}, 30, direction="minimize")
    assert _checkpoints(tmp_path) == ["best_ckpt-20"]


def test_best_checkpoint_hook_that_is_reused_in_another_run_saves_to_the_directory_of_that_run(
    make_scripted_trainer, make_controller, make_manager, tmp_path
):
    hook = hooks.BestCheckpoint("accuracy")
    accuracies = {"first": 0.9, "second": 0.5}
    for name, accuracy in accuracies.items():
        trainer = make_scripted_trainer(lambda step, value=accuracy: {"accuracy": value})
        controller = make_controller(
            trainer,
            hooks=[hook],
            checkpoint_manager=make_manager(trainer),
            model_dir=str(tmp_path / name),
        )
        controller.train_and_evaluate(10)
    for name, accuracy in accuracies.items():
        info = json.loads((tmp_path / name / "best_ckpt" / "info.json").read_text())
        assert info["accuracy"] == accuracy


def test_best_checkpoint_contains_the_averaged_weights_that_were_evaluated(
    make_keras_trainer, make_controller, tmp_path
):
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
