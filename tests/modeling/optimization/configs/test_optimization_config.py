"""Configs of the Model Garden are read, with its names and defaults."""

import pathlib

import pytest

from official_lite.common import errors
from official_lite.modeling import hyperparams, optimization

PARAMS = {
    "optimizer": {"type": "sgd", "sgd": {"momentum": 0.9}},
    "learning_rate": {
        "type": "stepwise",
        "stepwise": {"boundaries": [10000, 20000], "values": [0.1, 0.01, 0.001]},
    },
    "warmup": {"type": "linear", "linear": {"warmup_steps": 500}},
    "ema": {"average_decay": 0.9999},
}


def test_literal_is_read() -> None:
    config = optimization.OptimizationConfig(PARAMS)
    assert config.optimizer.get() == optimization.SGDConfig(momentum=0.9)
    assert config.learning_rate.get().values == [0.1, 0.01, 0.001]
    assert config.warmup.get() == optimization.LinearWarmupConfig(warmup_steps=500)
    assert config.ema == optimization.EMAConfig(average_decay=0.9999)


def test_nothing_is_selected_by_default() -> None:
    config = optimization.OptimizationConfig()
    choices = (config.optimizer, config.learning_rate, config.warmup)
    assert [choice.get() for choice in choices] == [None] * 3
    assert config.ema is None


def test_yaml_gives_the_config_back(tmp_path: pathlib.Path) -> None:
    config = optimization.OptimizationConfig(PARAMS)
    path = tmp_path / "optimization.yaml"
    hyperparams.save_params_dict_to_yaml(config, str(path))
    assert optimization.OptimizationConfig.from_yaml(str(path)) == config


def test_unknown_optimizer_is_answered_with_the_nearest() -> None:
    with pytest.raises(errors.ConfigValueError, match="adamw"):
        optimization.OptimizationConfig({"optimizer": {"type": "admw"}})


def test_slide_is_not_carried() -> None:
    with pytest.raises(errors.ConfigValueError, match="no alternative 'slide'"):
        optimization.OptimizationConfig({"optimizer": {"type": "slide"}})


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ({"learning_rate": {"stepwise": {"values": [0.1, float("nan"), 0.0]}}}, "stepwise.values"),
        ({"learning_rate": {"stepwise": {"values": [0.1, -0.1, 0.0]}}}, "stepwise.values"),
        ({"warmup": {"linear": {"warmup_learning_rate": float("inf")}}}, "warmup_learning_rate"),
    ],
)
def test_rate_that_cannot_be_is_refused(override: dict[str, object], path: str) -> None:
    config = optimization.OptimizationConfig(PARAMS)
    config.validate()
    config.override(override)
    with pytest.raises(errors.ConfigValueError, match=f"{path}` is .*expected a finite number"):
        config.validate()
