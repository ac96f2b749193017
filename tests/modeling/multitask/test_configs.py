import pathlib

import pytest

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams
from official_lite.modeling.multitask import configs


def _routine(name: str) -> configs.TaskRoutine:
    return configs.TaskRoutine(task_name=name, task_config=cfg.TaskConfig())


def test_experiments_are_experiment_configs() -> None:
    assert isinstance(configs.MultiTaskExperimentConfig(), cfg.ExperimentConfig)
    assert isinstance(configs.MultiEvalExperimentConfig(), cfg.ExperimentConfig)


def test_defaults_are_those_of_the_model_garden() -> None:
    params = configs.MultiTaskExperimentConfig()
    assert params.trainer.trainer_type == "interleaving"
    assert params.trainer.task_sampler.get().alpha == 1.0
    assert configs.TaskRoutine().task_weight == 1.0
    assert configs.AnnealingSampleConfig().total_steps == 20


def test_experiment_survives_a_file(tmp_path: pathlib.Path) -> None:
    params = configs.MultiTaskExperimentConfig(
        task=configs.MultiTaskConfig(task_routines=(_routine("foo"), _routine("bar")))
    )
    params.trainer.override(
        {"task_sampler": {"type": "annealing", "annealing": {"total_steps": 9}}}
    )
    path = str(tmp_path / "params.yaml")
    hyperparams.save_params_dict_to_yaml(params, path)
    assert configs.MultiTaskExperimentConfig.from_yaml(path) == params


def test_name_of_the_task_config_will_do() -> None:
    routine = configs.TaskRoutine(task_config=cfg.TaskConfig(name="foo"))
    assert routine.resolved_name == "foo"
    with pytest.raises(errors.ConfigValueError, match="no name"):
        _ = configs.TaskRoutine(task_config=cfg.TaskConfig()).resolved_name


def test_contradictions_are_refused() -> None:
    twice = (_routine("foo"), _routine("foo"))
    bad = [
        configs.MultiTaskConfig(task_routines=twice),
        configs.MultiEvalExperimentConfig(eval_tasks=twice),
        configs.TaskRoutine(task_name="foo"),
        _routine("foo").replace(task_weight=-1.0),
        _routine("foo").replace(eval_steps=0),
        configs.AnnealingSampleConfig(total_steps=0),
        configs.MultiTaskTrainerConfig(trainer_type="joined"),
        configs.MultiTaskTrainerConfig(grad_accum_steps=2),
        configs.MultiTaskTrainerConfig(virtual_replicas=2),
        configs.MultiTaskTrainerConfig(overfit_batches=2),
        configs.MultiTaskTrainerConfig(freeze=["dense"]),
        configs.MultiTaskTrainerConfig(remat=["dense"]),
    ]
    for config in bad:
        with pytest.raises(errors.ConfigValueError):
            config.validate()
