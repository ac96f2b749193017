import json

import keras
import pytest

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.common import errors
from official_lite.compression import configs
from official_lite.core import teachers, trainer_factory
from tests.line_experiment import LineTask, line_experiment


def _attach(teacher, **fields):
    params = line_experiment()
    params.task.compression = configs.CompressionConfig(
        distillation=configs.DistillationConfig(teacher=str(teacher), **fields)
    )
    task = LineTask(params.task)
    teachers.attach_teacher(params, task, trainer_factory.build_model)
    return task


def _run(tmp_path, argv):
    (tmp_path / "params.yaml").write_text("{}")
    (tmp_path / "run.json").write_text(json.dumps({"argv": argv}))
    for name in ("ckpt-1.index", "ckpt-1.data-00000-of-00001"):
        (tmp_path / name).touch()
    return tmp_path / "ckpt-1"


def test_directory_without_a_run_is_refused(tmp_path) -> None:
    with pytest.raises(errors.ConfigValueError, match="expected the model directory of a run"):
        _attach(tmp_path)


def test_run_without_a_checkpoint_is_refused(tmp_path) -> None:
    (tmp_path / "params.yaml").write_text("{}")
    with pytest.raises(errors.CheckpointError, match="contains no checkpoint"):
        _attach(tmp_path)


def test_experiment_that_runs_code_must_be_confirmed(tmp_path) -> None:
    teacher = _run(tmp_path, ["train.py", "--experiment=evil.py:config"])
    with pytest.raises(errors.ConfigValueError, match=r"'evil\.py:config', which runs"):
        _attach(teacher)


def test_run_that_names_no_experiment_requires_one(tmp_path) -> None:
    with pytest.raises(errors.ConfigValueError, match=r"Set `distillation\.experiment`"):
        _attach(_run(tmp_path, ["train.py"]))


def test_teacher_is_built_from_the_config_of_its_run(tmp_path) -> None:
    teacher = _run(tmp_path, ["train.py", "--experiment=vision/digits_mlp"])
    (tmp_path / "params.yaml").write_text("task: {model: {units: [3]}}")
    task = _attach(teacher)
    assert isinstance(task.distillation.teacher, keras.Model)
    assert task.distillation.teacher.get_layer("logits").kernel.shape == (3, 10)
