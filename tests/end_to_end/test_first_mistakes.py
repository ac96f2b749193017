"""What somebody who begins is likely to get wrong is told in time, with what to do."""

import pathlib
import subprocess

import pytest

from tests import commands

MINE = '''
import dataclasses

import keras
import tensorflow as tf

from official_lite.core import base_task, exp_factory, task_factory
from official_lite.core import config_definitions as cfg


@dataclasses.dataclass
class EndlessConfig(cfg.TaskConfig):
    units: int = 3


@dataclasses.dataclass
class LonelyConfig(cfg.TaskConfig):
    """Has no task."""


@task_factory.register_task_cls(EndlessConfig)
class EndlessTask(base_task.Task):
    def build_model(self):
        return keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(self.task_config.units), keras.layers.Dense(1)]
        )

    def build_inputs(self, params, input_context=None):
        data = tf.data.Dataset.from_tensors((tf.ones([4, 2]), tf.ones([4, 1])))
        return data.repeat() if params.is_training else data

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(tf.square(labels - model_outputs))


@dataclasses.dataclass
class TrainsOnlyConfig(EndlessConfig):
    pass


@task_factory.register_task_cls(TrainsOnlyConfig)
class TrainsOnlyTask(EndlessTask):
    def validation_step(self, inputs, model, metrics=None):
        raise NotImplementedError


@exp_factory.register_config_factory("first/trains_only")
def trains_only():
    return endless(TrainsOnlyConfig)


@exp_factory.register_config_factory("first/endless")
def endless(task_cls=EndlessConfig):
    optimizer = {
        "optimizer": {"type": "sgd"},
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
    }
    return cfg.ExperimentConfig(
        task=task_cls(
            train_data=cfg.DataConfig(global_batch_size=4, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=4, is_training=False),
        ),
        trainer=cfg.TrainerConfig(
            train_epochs=2, optimizer_config=cfg.OptimizationConfig(optimizer)
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off"),
    )


@exp_factory.register_config_factory("first/lonely")
def lonely():
    return endless(LonelyConfig)
'''


@pytest.fixture
def train(tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)

    def run(name: str, *args: str, mode: str = "train") -> subprocess.CompletedProcess[str]:
        command = ["train.py", f"--import={file}", f"--experiment={name}", f"--mode={mode}"]
        return commands.run([*command, f"--model_dir={tmp_path / 'run'}", *args])

    return run


def test_dry_run_asks_for_the_length_of_an_epoch_as_the_run_would(train) -> None:
    result = train("first/endless", "--dry_run")
    assert result.returncode == 2
    assert "the length of an epoch is unknown. The training dataset has no end." in result.stderr
    assert train("first/endless", "--dry_run", "--set=trainer.steps_per_epoch=9").returncode == 0


def test_dry_run_of_a_task_without_evaluation_passes_if_the_run_only_trains(train) -> None:
    given = ("--dry_run", "--set=trainer.steps_per_epoch=9")
    result = train("first/trains_only", *given)
    assert result.returncode == 0
    assert "There is no evaluation: `TrainsOnlyTask.validation_step`" in result.stderr
    result = train("first/trains_only", *given, mode="train_and_eval")
    assert result.returncode == 2
    assert "use `--mode=train`" in result.stderr


def test_evaluation_without_the_config_of_the_run_is_told_where_that_is(train, tmp_path) -> None:
    given = ("--set=trainer.steps_per_epoch=3", "--set=task.units=5")
    assert train("first/endless", *given).returncode == 0
    result = train("first/endless", mode="eval")
    assert result.returncode == 2
    flag = f"--config_file={tmp_path / 'run' / 'params.yaml'}"
    assert f"the config that the run recorded: {flag} (in Python: " in result.stderr
    assert (
        f"task.units: 5 -> 3\nTo use the config of the training, apply its file: {flag}"
        in result.stderr
    )
    again = train("first/endless", flag, mode="eval")
    assert again.returncode == 0
    assert "differs from" not in again.stderr


@pytest.mark.parametrize(
    ("name", "setting", "code", "answer"),
    [
        (
            "first/endless",
            "task.train_data.input_path=/no/such*",
            3,
            "`task.train_data.input_path`: The input file `/no/such*` does not exist",
        ),
        ("first/lonely", "trainer.train_steps=1", 2, "`@task_factory.register_task_cls(LonelyC"),
    ],
)
def test_missing_file_or_task_leaves_no_folder(train, tmp_path, name, setting, code, answer):
    result = train(name, f"--set={setting}")
    assert (result.returncode, answer in result.stderr) == (code, True), result.stderr
    assert not (tmp_path / "run").exists()
