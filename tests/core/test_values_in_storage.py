"""Tests that hooks find the values that a trainer reports in the event storage."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import nested_dict
from official_lite.core import train_lib
from official_lite.modeling.multitask import multitask
from official_lite.modeling.multitask import train_lib as multitask_lib
from tests.line_experiment import LineTask, line_experiment
from tests.modeling.multitask import conftest as pulls


class Reading(orbit.Hook):
    """A hook that reads the latest loss and rate every 4 steps, and all values at the end."""

    every_n_steps = 4
    seen: list[float]
    values: dict[str, list[tuple[float, int]]]

    def before_train(self) -> None:
        type(self).seen = []

    def after_step(self) -> None:
        storage = self.controller.storage
        loss = storage.history("training_loss").latest()
        rate = storage.history("learning_rate").latest()
        self.seen += [self.controller.step, loss, rate]

    def after_train(self, success: bool) -> None:
        names = nested_dict.flatten_nested_dict(self.controller.train_logs, "/")
        histories = {name: self.controller.storage.history(name) for name in names}
        type(self).values = {name: found.values() for name, found in histories.items()}


HOOKS = {"hooks": [f"{__name__}:Reading"]}


def _train(model_dir: pathlib.Path) -> None:
    params = line_experiment(trainer=HOOKS)
    train_lib.run_experiment(None, LineTask(params.task), "train", params, str(model_dir))


def _train_several(trainer_type: str) -> Callable[[pathlib.Path], None]:
    def train(model_dir: pathlib.Path) -> None:
        params = pulls.configs.MultiTaskExperimentConfig(
            task=pulls.configs.MultiTaskConfig(task_routines=pulls.routines()),
            runtime=pulls.cfg.RuntimeConfig(distribution_strategy="off"),
        )
        params.override({"trainer": {**pulls.TRAINER, **HOOKS, "trainer_type": trainer_type}})
        multitask_lib.run_experiment(
            distribution_strategy=tf.distribute.get_strategy(),
            task=multitask.MultiTask.from_config(params.task),
            model=pulls.PullModels(),
            mode="train",
            params=params,
            model_dir=str(model_dir),
        )

    return train


@pytest.mark.parametrize(
    "train",
    [
        pytest.param(_train, id="one task"),
        pytest.param(_train_several("joint"), id="joint"),
        pytest.param(_train_several("interleaving"), id="interleaving"),
    ],
)
def test_hooks_read_each_reported_value_once_from_the_event_storage(
    tmp_path: pathlib.Path, train: Callable[[pathlib.Path], None]
) -> None:
    train(tmp_path)
    lines = (tmp_path / "metrics.json").read_text().splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [r["step"] for r in records] == [4, 8]
    names = ("step", "training_loss", "learning_rate")
    assert Reading.seen == [record[name] for record in records for name in names]
    flat = [nested_dict.flatten_nested_dict(record, "/") for record in records]
    assert Reading.values.keys() == flat[-1].keys() - {"step", "split", "wall_time"}
    for name, values in Reading.values.items():
        reported = [(record[name], record["step"]) for record in flat if name in record]
        assert values == reported
