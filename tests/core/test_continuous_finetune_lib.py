import json
import os
import pathlib
import signal
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.common import errors, preemption
from official_lite.core import config_definitions as cfg
from official_lite.core import continuous_finetune_lib as lib
from official_lite.core import exp_factory, task_factory, train_lib
from official_lite.run import runtime
from official_lite.utils.testing import mock_task
from tests import waiting

Pretrain = Callable[[int], pathlib.Path]


@pytest.fixture
def params(tmp_path: pathlib.Path) -> cfg.ExperimentConfig:
    params = exp_factory.get_exp_config("mock")
    params.override(
        {
            "task": {"init_checkpoint": str(tmp_path / "pretrain")},
            "trainer": {
                "train_steps": 2,
                "validation_steps": 1,
                "checkpoint_interval": 1,
                "steps_per_loop": 1,
                "continuous_eval_timeout": 1,
                "optimizer_config": {
                    "optimizer": {"type": "sgd"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.25}},
                },
            },
            "runtime": {"distribution_strategy": "off"},
        }
    )
    return params


@pytest.fixture
def pretrain(params: cfg.ExperimentConfig, tmp_path: pathlib.Path) -> Pretrain:
    """Return a pretraining function; each step saves a checkpoint and lowers the bias by 0.25."""

    def run(steps: int) -> pathlib.Path:
        own = params.replace(task={"init_checkpoint": ""}, trainer={"train_steps": steps})
        model_dir = tmp_path / "pretrain"
        train_lib.run_experiment(
            None, task_factory.get_task(own.task), "train", own, str(model_dir)
        )
        return model_dir

    return run


def _run(params: cfg.ExperimentConfig, model_dir: pathlib.Path, **kwargs: Any) -> Any:
    return lib.run_continuous_finetune(lib.MODE, params, str(model_dir), **kwargs)


def _loss(model_dir: pathlib.Path, step: int) -> float:
    metrics = json.loads((model_dir / f"metrics-{step}.json").read_text())
    return float(metrics["validation_loss"])


@pytest.mark.slow
def test_each_pretraining_checkpoint_is_finetuned_from_its_own_weights(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    pretrain(3)
    logs = _run(params, tmp_path, run_post_eval=True)
    # The loss is the bias, which each step of pretraining and finetuning lowers by 0.25.
    assert [_loss(tmp_path, step) for step in (1, 2, 3)] == [0.25, 0.0, -0.25]
    assert float(logs["validation_loss"]) == -0.25


@pytest.mark.slow
def test_finetuning_run_writes_its_files_and_leaves_the_pretraining_directory_unchanged(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    pretrained = pretrain(1)
    before = sorted(pretrained.iterdir())
    assert _run(params, tmp_path / "job") == {}
    names = {path.name for path in (tmp_path / "job" / "finetune-1").iterdir()}
    assert {"params.yaml", "run.json", "metrics.json", "ckpt-2.index"} <= names
    assert list((tmp_path / "job" / "eval").glob("events.*"))
    assert sorted(pretrained.iterdir()) == before


@pytest.mark.slow
def test_restarted_continuous_finetuning_skips_checkpoints_that_are_already_finetuned(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    pretrain(2)
    (tmp_path / "metrics-1.json").write_text('{"validation_loss": "7.0"}')
    _run(params, tmp_path)
    assert not (tmp_path / "finetune-1").exists()
    assert _loss(tmp_path, 1) == 7.0
    assert _run(params, tmp_path, run_post_eval=True)["validation_loss"] == 0.0


def test_continuous_finetuning_ends_after_the_checkpoint_at_pretrain_steps(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    pretrain(3)
    params = params.replace(trainer={"continuous_eval_timeout": 10**6})
    _run(params, tmp_path, pretrain_steps=2, finetune=lambda *_: {})
    names = sorted(path.name for path in tmp_path.glob("metrics-*"))
    assert names == ["metrics-1.json", "metrics-2.json"]


@pytest.mark.slow
def test_continuous_finetuning_skips_a_pretraining_checkpoint_that_was_removed(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    pretrained = pretrain(2)
    for path in pretrained.glob("ckpt-1.*"):
        path.unlink()
    _run(params, tmp_path)
    assert [p.name for p in tmp_path.glob("metrics-*")] == ["metrics-2.json"]


def _finetune(strategy: Any, task: Any, run_params: Any, run_dir: str) -> Any:
    return train_lib.run_experiment(
        strategy, task, "train_and_eval", run_params, run_dir, run_post_eval=True
    )[1]


@pytest.mark.slow
def test_restarted_job_first_resumes_an_unfinished_run_whose_pretraining_checkpoint_was_removed(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    pretrained = pretrain(2)

    def stop_early(strategy: Any, task: Any, run_params: Any, run_dir: str) -> Any:
        _finetune(strategy, task, run_params.replace(trainer={"train_steps": 1}), run_dir)
        raise errors.PreemptedError("SIGTERM")

    with pytest.raises(errors.PreemptedError):
        _run(params, tmp_path, finetune=stop_early)
    for path in pretrained.glob("ckpt-1.*"):
        path.unlink()
    _run(params, tmp_path)
    assert [_loss(tmp_path, step) for step in (1, 2)] == [0.25, 0.0]


def test_restarted_job_resumes_an_unfinished_run_once_but_none_after_the_last_pretraining_step(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    pretrain(2)
    runs = []

    def finetune(strategy: Any, task: Any, run_params: Any, run_dir: str) -> Any:
        runs.append(pathlib.Path(run_dir).name)
        _finetune(strategy, task, run_params.replace(trainer={"train_steps": 1}), run_dir)
        if len(runs) == 2:
            raise errors.PreemptedError("SIGTERM")
        return {}

    with pytest.raises(errors.PreemptedError):
        _run(params, tmp_path, finetune=finetune)
    _run(params, tmp_path, finetune=finetune, pretrain_steps=1)
    assert runs == ["finetune-1", "finetune-2"]
    # Several processes would not agree on whether a second visit finds the run complete.
    (tmp_path / "metrics-2.json").unlink(missing_ok=True)
    _run(params, tmp_path, finetune=finetune)
    assert runs == ["finetune-1", "finetune-2", "finetune-2"]


def test_restarted_job_resumes_the_unfinished_run_of_a_removed_initial_pretraining_checkpoint(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    # With `recovery_max_trials`, pretraining also saves its initial weights.
    params.trainer.recovery_max_trials = 1
    pretrained = pretrain(1)
    runs = []

    def finetune(strategy: Any, task: Any, run_params: Any, run_dir: str) -> Any:
        runs.append(pathlib.Path(run_dir).name)
        _finetune(strategy, task, run_params.replace(trainer={"train_steps": 1}), run_dir)
        if len(runs) == 1:
            raise errors.PreemptedError("SIGTERM")
        return {}

    with pytest.raises(errors.PreemptedError):
        _run(params, tmp_path, finetune=finetune)
    for path in pretrained.glob("ckpt-0.*"):
        path.unlink()
    _run(params, tmp_path, finetune=finetune)
    assert runs == ["finetune-0", "finetune-0", "finetune-1"]


@pytest.mark.slow
def test_pretraining_checkpoint_removed_just_before_its_weights_are_loaded_is_skipped(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    pretrained = pretrain(2)

    def finetune(strategy: Any, task: Any, run_params: Any, run_dir: str) -> Any:
        for path in pretrained.glob("ckpt-1.*"):
            path.unlink()
        return _finetune(strategy, task, run_params, run_dir)

    _run(params, tmp_path, finetune=finetune)
    assert [p.name for p in tmp_path.glob("metrics-*")] == ["metrics-2.json"]


def test_custom_finetune_function_receives_the_pretraining_checkpoint(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    pretrained = pretrain(1)
    seen = []

    def finetune(strategy: Any, task: Any, run_params: Any, run_dir: str) -> dict[str, Any]:
        seen.append((run_params.task.init_checkpoint, run_dir))
        return {"a": {"b": tf.constant(0.5), "c": tf.ones([2])}}

    logs = _run(params, tmp_path, run_post_eval=True, finetune=finetune)
    assert seen == [(str(pretrained / "ckpt-1"), str(tmp_path / "finetune-1"))]
    assert logs["a"]["b"].numpy() == 0.5
    assert json.loads((tmp_path / "metrics-1.json").read_text())["a"]["b"] == "0.5"


def test_unfinished_finetuning_run_resumes_with_another_config_only_if_config_changes_are_allowed(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    pretrain(1)

    def stop_early(strategy: Any, task: Any, run_params: Any, run_dir: str) -> Any:
        _finetune(strategy, task, run_params.replace(trainer={"train_steps": 1}), run_dir)
        raise errors.PreemptedError("SIGTERM")

    with pytest.raises(errors.PreemptedError):
        _run(params, tmp_path, finetune=stop_early)
    schedule = {"type": "constant", "constant": {"learning_rate": 0.5}}
    changed = params.replace(trainer={"optimizer_config": {"learning_rate": schedule}})
    with pytest.raises(errors.ConfigError, match="learning_rate"):
        _run(changed, tmp_path)
    _run(changed, tmp_path, allow_config_change=True)
    # Pretraining, the first step and the second step lower the bias of 1 by the rate.
    assert _loss(tmp_path, 1) == 1 - 0.25 - 0.25 - 0.5


def test_changing_config_or_pretraining_directory_after_finetuning_raises_unless_it_is_allowed(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    pretrained, job = pretrain(1), tmp_path / "job"
    _run(params, job)
    schedule = {"type": "constant", "constant": {"learning_rate": 0.5}}
    changed = params.replace(trainer={"optimizer_config": {"learning_rate": schedule}})
    with pytest.raises(errors.ConfigValueError, match=r"learning_rate: 0\.25 -> 0\.5"):
        _run(changed, job)
    logs = _run(changed, job, run_post_eval=True, allow_config_change=True)
    assert logs["validation_loss"] == 0.25
    other = params.replace(task={"init_checkpoint": str(pretrained.rename(tmp_path / "other"))})
    with pytest.raises(errors.ConfigValueError, match="finetune-1 was fine-tuned from"):
        _run(other, job)
    logs = _run(other, job, run_post_eval=True, allow_config_change=True)
    # Pretraining and both steps of finetuning lower the bias of 1 by the rate.
    assert logs["validation_loss"] == _loss(job, 1) == 0.25


class ArchConfig(nas.ArchTaskConfig):
    """The config class that selects `ArchTask` in the registry."""


@task_factory.register_task_cls(ArchConfig)
class ArchTask(mock_task.MockTask):
    """A task whose config names an architecture."""


def test_restarted_job_with_an_architecture_file_skips_checkpoints_that_are_already_finetuned(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    pretrained, job, arch = pretrain(1), tmp_path / "job", tmp_path / "arch.json"
    arch.write_text('{"operation": "first"}')
    params.task = ArchConfig(arch=str(arch), init_checkpoint=str(pretrained))
    _run(params, job)
    logs = _run(params, job, run_post_eval=True)
    assert logs["validation_loss"] == _loss(job, 1)
    arch.write_text('{"operation": "second"}')
    with pytest.raises(errors.ConfigValueError, match=r"arch\.operation: first -> second"):
        _run(params, job)


def test_continuous_finetuning_and_run_experiment_refuse_a_config_with_phases(
    params: cfg.ExperimentConfig, tmp_path: pathlib.Path
) -> None:
    params.override({"phases": [{"name": "first"}]})
    with pytest.raises(errors.ConfigValueError, match="`phases` has 'first'"):
        _run(params, tmp_path / "run")
    task = task_factory.get_task(params.task)
    with pytest.raises(errors.ConfigValueError, match="`phases` has 'first'"):
        train_lib.run_experiment(None, task, "train", params, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_continuous_finetuning_raises_if_no_checkpoint_appears(
    params: cfg.ExperimentConfig, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(errors.CheckpointError, match="No checkpoint appeared"):
        _run(params, tmp_path)


def test_signal_to_one_worker_does_not_stop_it_alone_while_it_waits_for_a_checkpoint(
    params: cfg.ExperimentConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def build_strategy(_: cfg.RuntimeConfig) -> tf.distribute.Strategy:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        task = {"type": "worker", "index": 0}
        config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": task}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        os.kill(os.getpid(), signal.SIGTERM)
        waiting.wait_for(preemption.requested)
        return strategy

    monkeypatch.setattr(runtime, "build_strategy", build_strategy)
    with pytest.raises(errors.CheckpointError, match="No checkpoint appeared"):
        _run(params, tmp_path)


def test_continuous_finetuning_from_a_single_checkpoint_or_in_another_mode_raises(
    params: cfg.ExperimentConfig, pretrain: Pretrain, tmp_path: pathlib.Path
) -> None:
    checkpoint = str(pretrain(1) / "ckpt-1")
    with pytest.raises(errors.ConfigValueError, match="expected the directory"):
        _run(params.replace(task={"init_checkpoint": checkpoint}), tmp_path)
    with pytest.raises(errors.ConfigValueError, match="continuous_train_and_eval"):
        lib.run_continuous_finetune("train", params, str(tmp_path))
