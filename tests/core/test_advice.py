"""Tests of warnings about valid runs that are probably not what the user intended."""

import pathlib
from typing import Any

import pytest
import tensorflow as tf

from official_lite.core import train_lib
from tests.line_experiment import LineTask, line_experiment

STUCK = "The training loss has hardly changed since training began"
PERIODIC = {"name": "periodic_checkpoint", "every_n_steps": 40}
NO_CHECKPOINT = "No checkpoint is saved before training ends"


def _run(model_dir: pathlib.Path, task_cls: type[LineTask] = LineTask, **trainer: Any) -> str:
    params = line_experiment(trainer=trainer)
    mode = "train_and_eval" if "validation_interval" in trainer else "train"
    train_lib.run_experiment(None, task_cls(params.task), mode, params, str(model_dir))
    return (model_dir / "log.txt").read_text()


class Stuck(LineTask):
    """A task with a zero gradient and a loss that varies slightly."""

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        noise = 0.01 * tf.random.uniform([])
        return 2.3 + noise + 0.0 * super().build_losses(labels, model_outputs, aux_losses)


@pytest.mark.parametrize(
    ("task_cls", "steps", "steps_per_epoch", "count"),
    [
        (Stuck, 12, 6, 1),
        (Stuck, 110, 0, 1),
        (Stuck, 12, 0, 0),
        (LineTask, 12, 6, 0),
        (LineTask, 110, 0, 0),
    ],
)
def test_loss_that_stays_nearly_constant_logs_one_warning(
    tmp_path: pathlib.Path, task_cls: type[LineTask], steps: int, steps_per_epoch: int, count: int
) -> None:
    lengths = {"train_steps": steps, "steps_per_epoch": steps_per_epoch, "steps_per_loop": 1}
    log = _run(tmp_path, task_cls, checkpoint_interval=100, **lengths)
    assert log.count(STUCK) == count


@pytest.mark.parametrize(
    ("trainer", "advice"),
    [
        ({"checkpoint_interval": 1000}, "for example to 10."),
        ({"checkpoint_interval": 1000, "validation_interval": 30}, "for example to 30."),
        ({"checkpoint_interval": 1000, "hooks": [PERIODIC]}, ""),
        ({"checkpoint_interval": 100}, ""),
        ({"checkpoint_interval": 1000, "train_steps": 99}, ""),
        ({"checkpoint_interval": 0}, ""),
    ],
)
def test_long_run_whose_first_checkpoint_is_the_last_logs_one_warning_that_suggests_an_interval(
    tmp_path: pathlib.Path, trainer: dict[str, Any], advice: str
) -> None:
    log = _run(tmp_path, **{"train_steps": 100, **trainer})
    assert log.count(NO_CHECKPOINT) == bool(advice)
    assert advice in log


def test_loading_an_optimizer_whose_steps_exceed_a_schedule_in_ratios_logs_a_warning(
    tmp_path: pathlib.Path,
) -> None:
    def run(name: str, part: str, **length: Any) -> str:
        cosine = {"type": "cosine", "cosine": {"initial_learning_rate": 0.1, **length}}
        params = line_experiment(
            task={"init_checkpoint": source, "init_checkpoint_optimizer": part},
            trainer={"train_steps": 4, "optimizer_config": {"learning_rate": cosine}},
        )
        task = LineTask(params.task)
        train_lib.run_experiment(None, task, "train", params, str(tmp_path / name))
        return (tmp_path / name / "log.txt").read_text()

    source = str(tmp_path / "source")
    _run(tmp_path / "source", train_steps=4)
    log = run("ratio", "all", decay_ratio=1.0)
    assert "The learning-rate schedule ends at step 4, because" in log
    assert "set `decay_steps` instead" in log
    for name, part, length in (
        ("steps", "all", {"decay_steps": 4}),
        ("slots", "slots", {"decay_ratio": 1.0}),
    ):
        assert "schedule ends" not in run(name, part, **length)
