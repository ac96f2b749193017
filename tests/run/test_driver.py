"""Tests that all entry points record, check, lock and stop runs in the same way."""

import json
import os
import pathlib
import signal
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from official_lite import orbit, pipeline
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import continuous_finetune_lib, task_factory, train_lib
from official_lite.modeling.multitask import base_model, configs, multitask
from official_lite.modeling.multitask import train_lib as multitask_lib
from official_lite.run import driver, model_dir_lock
from official_lite.search import evaluators, search_config, trial_run
from tests.line_experiment import LineConfig, LineTask, line_experiment

task_factory.register_task_cls(LineConfig)(LineTask)


def through_pipeline(params: Any, model_dir: pathlib.Path) -> None:
    pipeline.RunPipeline(params, "train_and_eval", str(model_dir)).run()


def through_phases(params: Any, model_dir: pathlib.Path) -> None:
    phased = params.replace(phases=[{"name": model_dir.name}])
    pipeline.RunPipeline(phased, "train_and_eval", str(model_dir.parent)).run()


def through_run_experiment(params: Any, model_dir: pathlib.Path) -> None:
    strategy = tf.distribute.get_strategy()
    task = LineTask(params.task)
    train_lib.run_experiment(strategy, task, "train_and_eval", params, str(model_dir))


def through_runner(params: Any, model_dir: pathlib.Path) -> None:
    train_lib.OrbitExperimentRunner(
        tf.distribute.get_strategy(),
        LineTask(params.task),
        "train_and_eval",
        params,
        str(model_dir),
    ).run()


class Models(base_model.MultiTaskBaseModel):
    def __init__(self, task: Any) -> None:
        self._task = task
        super().__init__()

    def _instantiate_sub_tasks(self) -> dict[str, Any]:
        return {"line": self._task.build_model()}


def _several_tasks(params: Any) -> configs.MultiTaskExperimentConfig:
    routine = configs.TaskRoutine(task_name="line", task_config=params.task)
    trainer = configs.MultiTaskTrainerConfig(trainer_type="joint")
    trainer.override(params.trainer.as_dict(), is_strict=False)
    return configs.MultiTaskExperimentConfig(
        task=configs.MultiTaskConfig(task_routines=(routine,)),
        trainer=trainer,
        runtime=params.runtime,
    )


def through_several_tasks(params: Any, model_dir: pathlib.Path) -> None:
    task = LineTask(params.task, name="line")
    multitask_lib.run_experiment(
        distribution_strategy=tf.distribute.get_strategy(),
        task=multitask.MultiTask({"line": task}),
        model=Models(task),
        mode="train_and_eval",
        params=_several_tasks(params),
        model_dir=str(model_dir),
    )


def through_several_evaluations(params: Any, model_dir: pathlib.Path) -> None:
    task = LineTask(params.task, name="line")
    config = configs.MultiEvalExperimentConfig(
        task=params.task, trainer=params.trainer, runtime=params.runtime
    )
    multitask_lib.run_experiment_with_multitask_eval(
        distribution_strategy=tf.distribute.get_strategy(),
        train_task=task,
        eval_tasks=[task],
        mode="train_and_eval",
        params=config,
        model_dir=str(model_dir),
    )


def through_a_trial(params: Any, model_dir: pathlib.Path) -> None:
    class Trial(trial_run.TrialRun):
        def __init__(self) -> None:
            self.params: dict[str, Any] = {}
            self.config = search_config.SearchConfig(mode="train_and_eval")
            self.model_dir = str(model_dir)

    class Unreported(evaluators.ExperimentEvaluator):
        def trial_params(self, tried: Any) -> Any:
            return self._params

    Unreported(params)(Trial())


DOORS = [
    through_pipeline,
    through_phases,
    through_run_experiment,
    through_runner,
    through_several_tasks,
    through_several_evaluations,
    through_a_trial,
]
Door = Callable[[Any, pathlib.Path], None]


@pytest.fixture(params=DOORS, ids=lambda door: door.__name__)
def door(request: pytest.FixtureRequest) -> Door:
    return request.param


def _params(**overrides: Any) -> cfg.ExperimentConfig:
    params = line_experiment(trainer={"writers": ["jsonl"]}, runtime={"execution": "graph"})
    params.override(overrides)
    return params


def _with_rate(learning_rate: float) -> dict[str, Any]:
    rate = {"constant": {"learning_rate": learning_rate}}
    return {"trainer": {"optimizer_config": {"learning_rate": rate}, "train_steps": 12}}


@pytest.mark.sample(2)
def test_every_entry_point_writes_a_record_and_raises_for_a_changed_config(
    door: Door, tmp_path: pathlib.Path
) -> None:
    door(_params(), tmp_path / "run")
    text = (tmp_path / "run" / "run.json").read_text()
    record = json.loads(text)
    assert (record["status"], record["global_step"], record["num_parameters"]) == ("done", 8, 3)
    assert (tmp_path / "run" / "params.yaml").exists()
    assert (tmp_path / "run" / "log.txt").exists()
    with pytest.raises(errors.ConfigValueError, match=r"learning_rate: 0\.1 -> 0\.2"):
        door(_params(**_with_rate(0.2)), tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_text() == text


class StopEarly(orbit.Hook):
    def after_eval(self, logs: Any) -> None:
        self.controller.request_stop("seen enough")


@pytest.mark.sample(2)
def test_record_of_a_run_that_stops_early_states_the_reason(
    door: Door, tmp_path: pathlib.Path
) -> None:
    hooks = [f"{StopEarly.__module__}:StopEarly"]
    door(_params(trainer={"hooks": hooks}), tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["exit_reason"]) == ("done", "stop_requested: seen enough")
    assert record["global_step"] == 4


@pytest.mark.sample(2)
def test_every_entry_point_raises_for_a_missing_input_file_or_a_busy_model_directory(
    door: Door, tmp_path: pathlib.Path
) -> None:
    missing = {"task": {"train_data": {"input_path": str(tmp_path / "no.tfrecord")}}}
    with pytest.raises(errors.DataError, match=r"`task.*train_data.input_path`"):
        door(_params(**missing), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    with (
        model_dir_lock.ModelDirLock(str(tmp_path / "run")),
        pytest.raises(errors.ModelDirBusyError),
    ):
        door(_params(), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


class TermAtStep4(orbit.Hook):
    every_n_steps = 4

    def after_step(self) -> None:
        if self.controller.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.sample(2)
def test_sigterm_saves_a_checkpoint_and_records_the_preemption(
    door: Door, tmp_path: pathlib.Path
) -> None:
    hook = f"{__name__}:TermAtStep4"
    with pytest.raises(errors.PreemptedError):
        door(_params(trainer={"hooks": [hook], "train_steps": 400}), tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "preempted"
    assert (tmp_path / "run" / f"ckpt-{record['global_step']}.index").exists()


def test_continuous_finetuning_writes_a_record_for_each_finetuning_run(
    tmp_path: pathlib.Path,
) -> None:
    through_run_experiment(_params(), tmp_path / "pretraining")
    params = _params(
        task={"init_checkpoint": str(tmp_path / "pretraining")},
        trainer={"continuous_eval_timeout": 0, "hooks": [f"{__name__}:TermAtStep4"]},
    )
    with pytest.raises(errors.PreemptedError):
        continuous_finetune_lib.run_continuous_finetune(
            "continuous_train_and_eval", params, str(tmp_path / "job")
        )
    records = [json.loads(p.read_text()) for p in (tmp_path / "job").glob("*/run.json")]
    assert [record["status"] for record in records] == ["preempted"]


def test_all_cleanup_functions_run_after_an_error_and_the_original_error_is_raised(
    tmp_path: pathlib.Path,
) -> None:
    seen: list[BaseException | None] = []

    def work(record: Any) -> None:
        raise ValueError("the first")

    def fail(record: Any, error: BaseException | None) -> None:
        seen.append(error)
        raise RuntimeError("the second")

    with pytest.raises(ValueError, match="the first"):
        driver.drive(
            work, params=_params(), mode="train", model_dir=str(tmp_path), at_the_end=[fail, fail]
        )
    assert [str(error) for error in seen] == ["the first", "the first"]
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "failed"
