import pathlib

import gin
import pytest

from official_lite.common import errors
from official_lite.config import gin_config
from official_lite.core import config_definitions as cfg


def _bound(*bindings: str) -> cfg.ExperimentConfig:
    gin_config.parse_gin([], bindings)
    params = cfg.ExperimentConfig()
    gin_config.apply_bindings(params)
    return params


def test_binding_reaches_a_field_at_any_depth() -> None:
    params = _bound(
        "trainer/params.train_steps = 7",
        "trainer/optimizer_config/optimizer/params.type = 'sgd'",
    )
    assert params.trainer.train_steps == 7
    assert params.trainer.optimizer_config.optimizer.type == "sgd"


def test_macro_is_resolved() -> None:
    params = _bound("batch = 8", "task/train_data/params.global_batch_size = %batch")
    assert params.task.train_data.global_batch_size == 8


@pytest.mark.parametrize(
    ("binding", "error"),
    [
        ("trainer/params.trian_steps = 7", errors.UnknownKeyError),
        ("trainer/params.train_steps = 'many'", errors.ConfigTypeError),
        ("trainr/params.train_steps = 7", errors.UnknownKeyError),
        ("NoSuchThing.x = 7", errors.ConfigValueError),
        ("trainer/params.train_steps = = 7", errors.ConfigValueError),
    ],
)
def test_binding_that_would_have_no_effect_is_an_error(
    binding: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        _bound(binding)


def test_missing_file_is_a_config_error() -> None:
    with pytest.raises(errors.ConfigValueError, match="nowhere"):
        gin_config.parse_gin(["/nowhere.gin"], [])


def test_operative_config_fed_back_gives_the_same_config(tmp_path: pathlib.Path) -> None:
    params = _bound("trainer/params.train_steps = 7", "half = 0.5")
    params.override({"trainer": {"loss_upper_bound": float("inf")}, "task": {"name": "a 'b'\n"}})
    hooks = ["timer", {"name": "stop", "metrics": [["a"], {"b": 1}]}]
    hooks.append({"name": "bound", "limits": {"low": -float("inf"), "all": [float("inf"), 1.5]}})
    phases = [{"name": "a", "overrides": {"runtime.seed": 1}}]
    params.override({"trainer": {"hooks": hooks}, "phases": phases, "workspace": "/w"})
    file = tmp_path / "operative.gin"
    file.write_text(gin_config.operative_config(params))
    gin.clear_config()
    gin_config.parse_gin([str(file)], [])
    again = gin_config.apply_bindings(cfg.ExperimentConfig())
    assert again.as_dict() == params.as_dict()
    assert "half = 0.5" in gin_config.bindings()


def test_epochs_fed_back_are_not_taken_back_by_the_steps_beside_them() -> None:
    params = cfg.ExperimentConfig(trainer=cfg.TrainerConfig(train_epochs=3))
    gin_config.parse_gin([], gin_config.operative_config(params).splitlines())
    assert gin_config.apply_bindings(cfg.ExperimentConfig()) == params


def test_value_that_gin_cannot_hold_is_refused() -> None:
    params = cfg.ExperimentConfig(trainer=cfg.TrainerConfig(loss_upper_bound=float("nan")))
    with pytest.raises(errors.ConfigValueError, match="loss_upper_bound"):
        gin_config.operative_config(params)


@pytest.mark.parametrize("line", ["import os", "include 'other.gin'", "x = @os.system()"])
def test_safe_mode_refuses_what_can_run_code(tmp_path: pathlib.Path, line: str) -> None:
    file = tmp_path / "evil.gin"
    file.write_text(line + "\n")
    with pytest.raises(errors.ConfigValueError, match="--safe_config"):
        gin_config.parse_gin([str(file)], [], safe=True)


def test_safe_mode_takes_plain_values(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "plain.gin"
    file.write_text("trainer/params.train_steps = 9\n")
    gin_config.parse_gin([str(file)], [], safe=True)
    assert gin_config.apply_bindings(cfg.ExperimentConfig()).trainer.train_steps == 9
