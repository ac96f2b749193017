"""Runs with `--mode=test`, which evaluate data that did not choose the checkpoint."""

import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit, pipeline
from official_lite.checkpoint import latest
from official_lite.common import errors
from official_lite.core import (
    base_trainer,
    exp_factory,
    task_factory,
    train_lib,
    trainer_factory,
)
from official_lite.core import config_definitions as cfg
from official_lite.modeling.multitask import configs as multitask_configs
from official_lite.run import run_reading
from tests import commands
from tests.split_experiment import SplitsConfig, SplitsTask, arrays_of

TEST_DATA = {"task": {"test_data": {"split": "test"}}}
NO_BEST = {"best_checkpoint_export_subdir": "", "best_checkpoint_eval_metric": ""}


def _experiment(**overrides: Any) -> cfg.ExperimentConfig:
    params = exp_factory.get_exp_config("tests/splits")
    params.override(TEST_DATA)
    params.override(overrides)
    return params


def _run(
    params: cfg.ExperimentConfig,
    mode: str,
    model_dir: pathlib.Path,
    strategy: tf.distribute.Strategy | None = None,
    **kwargs: Any,
) -> Mapping[str, Any]:
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        task = task_factory.get_task(params.task)
    return train_lib.run_experiment(strategy, task, mode, params, str(model_dir), **kwargs)[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the model directory of a run that was trained without test data."""
    model_dir = tmp_path_factory.mktemp("splits") / "run"
    _run(exp_factory.get_exp_config("tests/splits"), "train_and_eval", model_dir)
    best = json.loads((model_dir / "best_ckpt" / "info.json").read_text())
    assert best["best_ckpt_global_step"] == 2
    return model_dir


@pytest.fixture
def run(trained: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a copy of the model directory."""
    return pathlib.Path(shutil.copytree(trained, tmp_path / "run"))


def _expected(directory: pathlib.Path) -> dict[str, Any]:
    """Return the metrics of a checkpoint on the test data, computed by NumPy."""
    model = SplitsTask(SplitsConfig()).build_model()
    path = latest.latest_checkpoint(str(directory))
    tf.train.Checkpoint(model=model).restore(path).expect_partial()
    kernel, bias = model.get_weights()
    features, labels = arrays_of("test")
    mistakes = features @ kernel + bias - labels
    metrics = {"mae": np.mean(np.abs(mistakes)), "test_loss": np.mean(mistakes**2)}
    return {name: pytest.approx(float(value), rel=1e-5) for name, value in metrics.items()}


def _contents(directory: pathlib.Path) -> dict[pathlib.Path, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory): path.read_bytes() for path in files}


def _lines(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("replicas", [1, 2])
def test_test_mode_reports_the_metrics_of_the_best_weights_on_all_test_data(
    run, two_replicas, replicas: int
) -> None:
    logs = _run(_experiment(), "test", run, two_replicas if replicas == 2 else None)
    assert dict(logs) == _expected(run / "best_ckpt")
    assert dict(logs) != _expected(run)


def test_train_py_prints_the_results_of_a_test_and_names_the_tested_checkpoint(run) -> None:
    flags = ("--import=tests.split_experiment", "--experiment=tests/splits", "--mode=test")
    done = commands.run(
        ["train.py", *flags, f"--model_dir={run}", "--set=task.test_data.split=test"]
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == _expected(run / "best_ckpt")
    assert f"{run}/best_ckpt/best_ckpt-2" in done.stderr


def test_test_mode_writes_separate_files_and_leaves_training_files_unchanged(run) -> None:
    before, read_before = _contents(run), run_reading.read_run(str(run))
    # The test loss is lower than all validation losses.
    hook = orbit.hooks.BestCheckpoint("test_loss", "minimize")
    logs = _run(_experiment(), "test", run, hooks=[hook])
    assert read_before.best is not None
    assert logs["test_loss"] < read_before.best.metrics["validation_loss"]

    after = _contents(run)
    assert {path: after[path] for path in before} == before
    names = {str(path) for path in after.keys() - before.keys()}
    [events] = (name for name in names if name.startswith("test/"))
    assert ".tfevents." in events
    assert names - {events} == {
        "run.test.json",
        "log.test.txt",
        "goodput.test.json",
        "metrics.test.json",
        "operative_config.test.gin",
    }
    [record] = _lines(run / "metrics.test.json")
    assert (record["step"], record["split"]) == (2, "test")
    assert {"mae", "test_loss"} == record.keys() - {"step", "split", "wall_time"}

    read = run_reading.read_run(str(run))
    assert read.series == {**read_before.series, "test": read.series["test"]}
    assert read.series["test"]["test_loss"].steps == (2,)
    assert (read.best, read.step, read.mode) == (read_before.best, 8, "train_and_eval")


def test_training_resumed_after_a_test_equals_uninterrupted_training_bit_for_bit(
    run, tmp_path
) -> None:
    def values(directory: pathlib.Path) -> list[dict[str, Any]]:
        measured = ("wall_time", "steps_per_second")
        lines = _lines(directory / "metrics.json")
        return [{k: v for k, v in line.items() if k not in measured} for line in lines]

    def variables(directory: pathlib.Path) -> dict[str, Any]:
        reader = tf.train.load_checkpoint(str(directory / "ckpt-8"))
        names = [name for name in reader.get_variable_to_shape_map() if name.startswith("model/")]
        return {name: np.asarray(reader.get_tensor(name)).tolist() for name in names}

    resumed = tmp_path / "resumed"
    params = exp_factory.get_exp_config("tests/splits")
    params.override({"trainer": {"train_steps": 4}})
    _run(params, "train_and_eval", resumed)
    _run(_experiment(), "test", resumed)
    tested = (resumed / "metrics.test.json").read_bytes()
    _run(_experiment(), "train_and_eval", resumed)

    assert (resumed / "metrics.test.json").read_bytes() == tested
    assert values(resumed) == values(run)
    assert variables(resumed) == variables(run)
    assert run_reading.read_run(str(resumed)).best.metrics == (
        run_reading.read_run(str(run)).best.metrics
    )


class OwnDataTask(SplitsTask):
    """A task that reads the data block of its own config, as many tasks for the Model Garden do."""

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        own = (
            self.task_config.train_data if params.is_training else self.task_config.validation_data
        )
        return super().build_inputs(own, input_context)


def test_test_mode_reads_test_data_even_if_build_inputs_ignores_its_params(run) -> None:
    params = _experiment()
    task = OwnDataTask(params.task)
    strategy = tf.distribute.get_strategy()
    _, logs = train_lib.run_experiment(strategy, task, "test", params, str(run))
    assert dict(logs) == _expected(run / "best_ckpt")
    assert task.task_config.validation_data.split == "validation"


def test_test_mode_evaluates_the_best_checkpoint_that_a_hook_has_saved(tmp_path) -> None:
    hook = {"name": "best_checkpoint", "metric": "validation_loss", "directory": "kept"}
    params = _experiment(trainer={**NO_BEST, "hooks": [hook]})
    _run(params, "train_and_eval", tmp_path)
    assert dict(_run(params, "test", tmp_path)) == _expected(tmp_path / "kept")


def test_test_mode_ignores_hooks_that_watch_validation_metrics(run) -> None:
    hook = orbit.hooks.EarlyStopping("validation_loss", patience=1)
    assert dict(_run(_experiment(), "test", run, hooks=[hook])) == _expected(run / "best_ckpt")


def test_gin_config_exported_in_test_mode_keeps_the_original_validation_data(run) -> None:
    pipeline.RunPipeline(_experiment(), "test", str(run)).run()
    exported = (run / "operative_config.test.gin").read_text()
    assert "validation_data/params.split = 'validation'" in exported
    assert "test_data/params.split = 'test'" in exported


@pytest.mark.parametrize(
    "limit",
    [
        {"validation_steps": 1},
        {"overfit_batches": 1},
        {"validation_steps": 1, "eval_tf_while_loop": True},
    ],
)
def test_validation_and_overfit_limits_do_not_apply_to_test_data(run, limit) -> None:
    logs = _run(_experiment(trainer=limit), "test", run)
    assert dict(logs) == _expected(run / "best_ckpt")


def test_test_mode_evaluates_the_latest_checkpoint_if_there_is_no_best_checkpoint(run) -> None:
    assert dict(_run(_experiment(trainer=NO_BEST), "test", run)) == _expected(run)
    shutil.rmtree(run / "best_ckpt")
    assert dict(_run(_experiment(), "test", run)) == _expected(run)


def test_test_mode_evaluates_init_checkpoint_in_an_empty_model_directory(trained, tmp_path) -> None:
    params = _experiment(task={"init_checkpoint": str(trained / "best_ckpt")})
    assert dict(_run(params, "test", tmp_path / "new")) == _expected(trained / "best_ckpt")


def test_best_checkpoint_of_an_earlier_phase_can_be_tested_in_a_later_phase(tmp_path) -> None:
    phases = [
        {"name": "learn", "mode": "train_and_eval"},
        {"name": "judge", "mode": "test", "init_from": "learn/best_ckpt"},
    ]
    _, logs = pipeline.RunPipeline(_experiment(phases=phases), "train", str(tmp_path)).run()
    assert dict(logs) == _expected(tmp_path / "learn" / "best_ckpt")


def test_test_mode_without_a_checkpoint_raises(tmp_path) -> None:
    with pytest.raises(errors.CheckpointError, match="mode `test` would use random weights"):
        _run(_experiment(), "test", tmp_path / "new")
    assert not (tmp_path / "new").exists()


class PretrainedTask(SplitsTask):
    """A task that loads its weights itself, and that is not registered for its config."""

    def initialize(self, model: keras.Model) -> None:
        model.set_weights([np.ones_like(weights) for weights in model.get_weights()])


@gin.configurable(module="tests")
class PretrainedTrainer(base_trainer.Trainer):
    """A trainer that loads the weights itself."""

    def initialize(self) -> None:
        PretrainedTask(self.task.task_config).initialize(self.model)


@pytest.mark.parametrize("loader", ["task", "trainer of gin"])
def test_test_mode_without_a_checkpoint_evaluates_weights_that_the_run_loads_itself(
    tmp_path, loader: str
) -> None:
    params = _experiment()
    if loader == "task":
        task = PretrainedTask(params.task)
    else:
        gin.parse_config("create_trainer.trainer_cls = @PretrainedTrainer")
        task = SplitsTask(params.task)
    model, logs = train_lib.run_experiment(None, task, "test", params, str(tmp_path / "new"))
    assert all(np.all(weights == 1) for weights in model.get_weights())
    assert logs["test_loss"] > 0


def test_missing_test_file_raises_an_error_that_names_the_test_data(run, tmp_path) -> None:
    test_data = {"input_path": str(tmp_path / "none.tfrecord")}
    with pytest.raises(errors.DataError, match=r"task\.test_data\.input_path"):
        _run(_experiment(task={"test_data": test_data}), "test", run)


def test_test_mode_refuses_a_trainer_that_would_evaluate_the_validation_data(run) -> None:
    params = _experiment()
    task = task_factory.get_task(params.task)
    other = trainer_factory.create_trainer(params, task, train=False, evaluate=True)
    with pytest.raises(errors.ConfigValueError, match="for_test"):
        _run(params, "test", run, trainer=other)
    tested = cfg.for_test(params)
    right = trainer_factory.create_trainer(tested, task, train=False, evaluate=True)
    assert dict(_run(params, "test", run, trainer=right)) == _expected(run / "best_ckpt")


def test_test_mode_refuses_experiments_with_several_tasks_or_no_test_data() -> None:
    with pytest.raises(errors.ConfigValueError, match="one task"):
        cfg.require_test_data(multitask_configs.MultiTaskExperimentConfig())
    with pytest.raises(errors.ConfigValueError, match=r"--set=task\.test_data\.input_path"):
        cfg.require_test_data(exp_factory.get_exp_config("tests/splits"))
