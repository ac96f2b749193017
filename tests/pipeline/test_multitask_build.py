import json
import pathlib

import pytest

from official_lite import pipeline
from official_lite.core import config_definitions as cfg
from official_lite.core import task_factory
from official_lite.modeling.multitask import configs, multitask, test_utils


class MockConfig(configs.MultiTaskConfig):
    pass


class MockTasks(multitask.MultiTask):
    def build_multitask_model(self) -> test_utils.MockMultiTaskModel:
        return test_utils.MockMultiTaskModel()


task_factory.register_task_cls(MockConfig)(MockTasks.from_config)


@pytest.fixture
def params() -> configs.MultiTaskExperimentConfig:
    routines = (
        configs.TaskRoutine(task_name="foo", task_config=test_utils.FooConfig(), eval_steps=2),
        configs.TaskRoutine(task_name="bar", task_config=test_utils.BarConfig(), eval_steps=2),
    )
    params = configs.MultiTaskExperimentConfig(
        task=MockConfig(task_routines=routines),
        runtime=cfg.RuntimeConfig(distribution_strategy="off"),
        pipeline=cfg.PipelineConfig(build="official_lite.pipeline.multitask_build:MultiTaskBuild"),
    )
    params.override(
        {
            "trainer": {
                "trainer_type": "joint",
                "checkpoint_interval": 2,
                "writers": ["jsonl"],
                "optimizer_config": {
                    "optimizer": {"type": "sgd"},
                    "ema": {"average_decay": 0.5},
                    "learning_rate": {"type": "constant"},
                },
            }
        }
    )
    return params


def test_tasks_are_trained_resumed_and_evaluated(params, tmp_path: pathlib.Path) -> None:
    def run(mode: str, train_steps: int):
        params.override({"trainer": {"train_steps": train_steps}})
        return pipeline.RunPipeline(params, mode, str(tmp_path)).run()

    model, logs = run("train_and_eval", 2)
    assert isinstance(model, test_utils.MockMultiTaskModel)
    assert logs.keys() >= {"foo", "bar"}
    assert run("train", 4)[1] == {}
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["status"], record["global_step"], record["num_parameters"]) == ("done", 4, 7)
    _, evaluated = run("eval", 4)
    assert evaluated["foo"]["validation_loss"] <= logs["foo"]["validation_loss"]
