import pathlib
from typing import Any

import pytest

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams
from official_lite.modeling.multitask import configs


def _routine(name: str) -> configs.TaskRoutine:
    return configs.TaskRoutine(task_name=name, task_config=cfg.TaskConfig())


def test_multitask_configs_have_the_model_garden_defaults() -> None:
    params = configs.MultiTaskExperimentConfig()
    assert isinstance(params, cfg.ExperimentConfig)
    assert isinstance(configs.MultiEvalExperimentConfig(), cfg.ExperimentConfig)
    assert params.trainer.trainer_type == "interleaving"
    assert params.trainer.task_sampler.get().alpha == 1.0
    assert configs.TaskRoutine().task_weight == 1.0
    assert configs.AnnealingSampleConfig().total_steps == 20


def test_multitask_config_round_trips_through_yaml(tmp_path: pathlib.Path) -> None:
    params = configs.MultiTaskExperimentConfig(
        task=configs.MultiTaskConfig(task_routines=(_routine("foo"), _routine("bar")))
    )
    params.trainer.override(
        {"task_sampler": {"type": "annealing", "annealing": {"total_steps": 9}}}
    )
    path = str(tmp_path / "params.yaml")
    hyperparams.save_params_dict_to_yaml(params, path)
    assert configs.MultiTaskExperimentConfig.from_yaml(path) == params


def test_task_routine_is_named_after_its_task_config_by_default() -> None:
    assert configs.TaskRoutine(task_config=cfg.TaskConfig(name="foo")).resolved_name == "foo"


TWICE = (_routine("foo"), _routine("foo"))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (configs.MultiTaskConfig(task_routines=TWICE), "'foo'"),
        (configs.MultiTaskConfig(task_routines=(_routine(""),)), "no name"),
        (configs.MultiEvalExperimentConfig(eval_tasks=TWICE), "'foo'"),
        (configs.TaskRoutine(task_name="foo"), "task_config"),
        (_routine("foo").replace(task_weight=-1.0), "task_weight"),
        (_routine("foo").replace(eval_steps=0), "eval_steps"),
        (configs.AnnealingSampleConfig(total_steps=0), "total_steps"),
        (configs.MultiTaskTrainerConfig(trainer_type="joined"), "joint"),
        (configs.MultiTaskTrainerConfig(grad_accum_steps=2), "grad_accum_steps"),
        (configs.MultiTaskTrainerConfig(virtual_replicas=2), "virtual_replicas"),
        (configs.MultiTaskTrainerConfig(overfit_batches=2), "overfit_batches"),
        (configs.MultiTaskTrainerConfig(freeze=["dense"]), "freeze"),
        (configs.MultiTaskTrainerConfig(remat=["dense"]), "remat"),
        (configs.MultiTaskTrainerConfig(name="darts"), "`name` is 'darts'"),
        (
            configs.MultiEvalExperimentConfig(
                eval_tasks=(_routine("foo"),), trainer=cfg.TrainerConfig(overfit_batches=2)
            ),
            "overfit_batches",
        ),
    ],
)
def test_invalid_or_unsupported_multitask_config_is_refused(config: Any, named: str) -> None:
    with pytest.raises(errors.ConfigValueError, match=named):
        config.validate()
