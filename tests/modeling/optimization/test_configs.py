"""Configs of optimizers and schedules have the fields and defaults of the Model Garden."""

import pathlib
from typing import Any

import pytest
import yaml

from official_lite.common import errors
from official_lite.modeling import hyperparams, optimization

DEFAULTS: dict[str, dict[str, Any]] = yaml.safe_load("""
ConstantLr: {name: Constant, learning_rate: 0.1}
StepwiseLr: {name: PiecewiseConstantDecay, boundaries: ~, values: ~, offset: 0, boundary_ratios: ~}
ExponentialLr: {name: ExponentialDecay, initial_learning_rate: ~, decay_steps: ~, decay_rate: ~,
  staircase: ~, offset: 0, decay_ratio: ~}
PolynomialLr: {name: PolynomialDecay, initial_learning_rate: ~, decay_steps: ~,
  end_learning_rate: 0.0001, power: 1.0, cycle: false, offset: 0, decay_ratio: ~}
CosineLr: {name: CosineDecay, initial_learning_rate: ~, decay_steps: ~, alpha: 0.0, offset: 0,
  decay_ratio: ~}
DirectPowerLr: {name: DirectPowerDecay, initial_learning_rate: ~, power: -0.5}
PowerAndLinearDecayLr: {name: PowerAndLinearDecay, initial_learning_rate: ~, total_decay_steps: ~,
  power: -0.5, linear_decay_fraction: 0.1, offset: 0, decay_ratio: ~}
PowerDecayWithOffsetLr: {name: PowerDecayWithOffset, initial_learning_rate: ~, power: -0.5,
  offset: 0, pre_offset_learning_rate: 1000000.0}
StepCosineLr: {name: StepCosineDecayWithOffset, boundaries: ~, values: ~, offset: 0,
  boundary_ratios: ~}
LinearWarmup: {name: linear, warmup_learning_rate: 0.0, warmup_steps: ~, warmup_ratio: ~}
PolynomialWarmup: {name: polynomial, power: 1.0, warmup_steps: ~, warmup_ratio: ~}
SGD: {lazy_rows: false, name: SGD, decay: 0.0, nesterov: false, momentum: 0.0}
SGDExperimental: {lazy_rows: false, name: SGD, nesterov: false, momentum: 0.0, jit_compile: false}
RMSProp: {lazy_rows: false, name: RMSprop, rho: 0.9, momentum: 0.0, epsilon: 1.0e-07,
  centered: false}
Adagrad: {lazy_rows: false, name: Adagrad, initial_accumulator_value: 0.1, epsilon: 1.0e-07}
Adam: {lazy_rows: false, name: Adam, beta_1: 0.9, beta_2: 0.999, epsilon: 1.0e-07, amsgrad: false}
AdamExperimental: {lazy_rows: false, name: Adam, beta_1: 0.9, beta_2: 0.999, epsilon: 1.0e-07,
  amsgrad: false, jit_compile: false}
AdamWeightDecay: {lazy_rows: false, name: AdamWeightDecay, beta_1: 0.9, beta_2: 0.999,
  epsilon: 1.0e-07, amsgrad: false, weight_decay_rate: 0.0, include_in_weight_decay: ~,
  exclude_from_weight_decay: ~, gradient_clip_norm: 1.0}
AdamWeightDecayExperimental: {lazy_rows: false, name: AdamWeightDecayExperimental, beta_1: 0.9,
  beta_2: 0.999, epsilon: 1.0e-07, amsgrad: false, weight_decay: 0.0, global_clipnorm: 1.0,
  jit_compile: false}
LAMB: {name: LAMB, beta_1: 0.9, beta_2: 0.999, epsilon: 1.0e-06, weight_decay_rate: 0.0,
  exclude_from_weight_decay: ~, exclude_from_layer_adaptation: ~}
LARS: {name: LARS, momentum: 0.9, eeta: 0.001, weight_decay_rate: 0.0, nesterov: false,
  classic_momentum: true, exclude_from_weight_decay: ~, exclude_from_layer_adaptation: ~}
EMA: {name: ExponentialMovingAverage, trainable_weights_only: true, average_decay: 0.99,
  start_step: 0, dynamic_decay: true, equal_weights: false}
Adafactor: {name: Adafactor, factored: true, multiply_by_parameter_scale: true, beta1: ~,
  decay_rate: 0.8, step_offset: 0, clipping_threshold: 1.0, min_dim_size_to_factor: 128,
  epsilon1: 1.0e-30, epsilon2: 0.001, weight_decay: ~, include_in_weight_decay: ~}
AdafactorKeras: {name: Adafactor, learning_rate: 0.001, beta_2_decay: -0.8, epsilon_1: 1.0e-30,
  epsilon_2: 0.001, clip_threshold: 1.0, relative_step: true}
""")
CLIPPING = {"clipnorm": None, "clipvalue": None, "global_clipnorm": None}
PARAMS = {
    "optimizer": {"type": "sgd", "sgd": {"momentum": 0.9}},
    "learning_rate": {
        "type": "stepwise",
        "stepwise": {"boundaries": [10000, 20000], "values": [0.1, 0.01, 0.001]},
    },
    "warmup": {"type": "linear", "linear": {"warmup_steps": 500}},
    "ema": {"average_decay": 0.9999},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_optimization_config_has_the_fields_and_defaults_of_the_model_garden(name: str) -> None:
    config = getattr(optimization, f"{name}Config")()
    clips = isinstance(config, optimization.BaseOptimizerConfig)
    assert config.as_dict() == {**(CLIPPING if clips else {}), **DEFAULTS[name]}


def test_integer_in_a_float_field_becomes_a_float() -> None:
    assert isinstance(optimization.SGDConfig({"momentum": 0}).momentum, float)


def test_optimization_config_is_read_from_a_dict_and_from_a_file(tmp_path: pathlib.Path) -> None:
    config = optimization.OptimizationConfig(PARAMS)
    assert config.optimizer.get() == optimization.SGDConfig(momentum=0.9)
    assert config.learning_rate.get().values == [0.1, 0.01, 0.001]
    assert config.warmup.get() == optimization.LinearWarmupConfig(warmup_steps=500)
    assert config.ema == optimization.EMAConfig(average_decay=0.9999)
    path = str(tmp_path / "optimization.yaml")
    hyperparams.save_params_dict_to_yaml(config, path)
    assert optimization.OptimizationConfig.from_yaml(path) == config


def test_optimization_config_selects_no_optimizer_and_no_schedule_by_default() -> None:
    config = optimization.OptimizationConfig()
    choices = (config.optimizer, config.learning_rate, config.warmup)
    assert [choice.get() for choice in choices] == [None] * 3
    assert config.ema is None


def test_setting_decay_steps_clears_the_decay_ratio() -> None:
    config = optimization.CosineLrConfig(decay_ratio=0.5)
    config.override({"decay_steps": 10})
    assert (config.decay_steps, config.decay_ratio) == (10, None)


# A config class, invalid values for it, and the name that the message must contain.
REFUSALS: list[tuple[Any, dict[str, Any], str]] = [
    (optimization.LinearWarmupConfig, {"warmup_ratio": 1.5}, "warmup_ratio"),
    (optimization.CosineLrConfig, {"decay_ratio": -0.1}, "decay_ratio"),
    (optimization.StepwiseLrConfig, {"boundary_ratios": [0.5, 0.4]}, "boundary_ratios"),
    (optimization.StepCosineLrConfig, {"boundary_ratios": [0.0, 2.0]}, "boundary_ratios"),
    (optimization.OptimizationConfig, {"optimizer": {"type": "admw"}}, "adamw"),
    # An optimizer of the Model Garden that is missing here.
    (optimization.OptimizationConfig, {"optimizer": {"type": "slide"}}, "slide"),
    (
        optimization.OptimizationConfig,
        {"learning_rate": {"stepwise": {"values": [0.1, float("nan"), 0.0]}}},
        "stepwise.values",
    ),
    (
        optimization.OptimizationConfig,
        {"learning_rate": {"stepwise": {"values": [0.1, -0.1, 0.0]}}},
        "stepwise.values",
    ),
    (
        optimization.OptimizationConfig,
        {"warmup": {"linear": {"warmup_learning_rate": float("inf")}}},
        "warmup_learning_rate",
    ),
]


@pytest.mark.parametrize(("config_cls", "values", "named"), REFUSALS)
def test_invalid_value_in_the_optimization_config_raises(
    config_cls: Any, values: dict[str, Any], named: str
) -> None:
    config = config_cls(PARAMS) if config_cls is optimization.OptimizationConfig else config_cls()
    config.validate()

    def override() -> None:
        config.override(values)
        config.validate()

    with pytest.raises(errors.ConfigValueError, match=named):
        override()
