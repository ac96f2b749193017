import pathlib

import tensorflow as tf

from official_lite.core import exp_factory, task_factory, train_lib
from official_lite.utils.testing import mock_task


def _experiment() -> mock_task.cfg.ExperimentConfig:
    params = exp_factory.get_exp_config("mock")
    params.override({"trainer": {"train_steps": 2, "validation_steps": 3}})
    params.trainer.optimizer_config.override(
        {"optimizer": {"type": "sgd"}, "learning_rate": {"type": "constant"}}
    )
    return params


def test_mock_config_creates_the_mock_task() -> None:
    task = task_factory.get_task(exp_factory.get_exp_config("mock").task, name="mine")
    assert isinstance(task, mock_task.MockTask)
    assert task.name == "mine"


def test_mock_task_loss_equals_the_model_bias() -> None:
    task = mock_task.MockTask(mock_task.MockTaskConfig())
    batch = next(iter(task.build_inputs(None)))
    assert float(task.validation_step(batch, task.build_model())["loss"]) == 1.0


def test_mock_experiment_trains_and_counts_evaluation_steps(tmp_path: pathlib.Path) -> None:
    params = _experiment()
    task = task_factory.get_task(params.task)
    strategy = tf.distribute.get_strategy()
    _, logs = train_lib.run_experiment(
        strategy, task, "train_and_eval", params, str(tmp_path), run_post_eval=True
    )
    assert logs["counter"] == 3.0
    assert logs["validation_loss"] < 1.0
