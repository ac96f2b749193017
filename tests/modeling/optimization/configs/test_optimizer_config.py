"""Fields and defaults are those of the Model Garden."""

from typing import Any

import pytest

from official_lite.modeling import optimization

CLIP = {"clipnorm": None, "clipvalue": None, "global_clipnorm": None}
ADAM = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": False}
EXCLUDE = {"exclude_from_weight_decay": None, "exclude_from_layer_adaptation": None}
DEFAULTS: dict[str, dict[str, Any]] = {
    "SGDConfig": {"name": "SGD", "decay": 0.0, "nesterov": False, "momentum": 0.0},
    "SGDExperimentalConfig": {
        "name": "SGD",
        "nesterov": False,
        "momentum": 0.0,
        "jit_compile": False,
    },
    "RMSPropConfig": {
        "name": "RMSprop",
        "rho": 0.9,
        "momentum": 0.0,
        "epsilon": 1e-7,
        "centered": False,
    },
    "AdagradConfig": {"name": "Adagrad", "initial_accumulator_value": 0.1, "epsilon": 1e-7},
    "AdamConfig": {"name": "Adam", **ADAM},
    "AdamExperimentalConfig": {"name": "Adam", **ADAM, "jit_compile": False},
    "AdamWeightDecayConfig": {
        "name": "AdamWeightDecay",
        **ADAM,
        "weight_decay_rate": 0.0,
        "include_in_weight_decay": None,
        "exclude_from_weight_decay": None,
        "gradient_clip_norm": 1.0,
    },
    "AdamWeightDecayExperimentalConfig": {
        "name": "AdamWeightDecayExperimental",
        **ADAM,
        "weight_decay": 0.0,
        "global_clipnorm": 1.0,
        "jit_compile": False,
    },
    "LAMBConfig": {
        "name": "LAMB",
        "beta_1": 0.9,
        "beta_2": 0.999,
        "epsilon": 1e-6,
        "weight_decay_rate": 0.0,
        **EXCLUDE,
    },
    "LARSConfig": {
        "name": "LARS",
        "momentum": 0.9,
        "eeta": 0.001,
        "weight_decay_rate": 0.0,
        "nesterov": False,
        "classic_momentum": True,
        **EXCLUDE,
    },
    "EMAConfig": {
        "name": "ExponentialMovingAverage",
        "trainable_weights_only": True,
        "average_decay": 0.99,
        "start_step": 0,
        "dynamic_decay": True,
        "equal_weights": False,
    },
    "AdafactorConfig": {
        "name": "Adafactor",
        "factored": True,
        "multiply_by_parameter_scale": True,
        "beta1": None,
        "decay_rate": 0.8,
        "step_offset": 0,
        "clipping_threshold": 1.0,
        "min_dim_size_to_factor": 128,
        "epsilon1": 1e-30,
        "epsilon2": 1e-3,
        "weight_decay": None,
        "include_in_weight_decay": None,
    },
    "AdafactorKerasConfig": {
        "name": "Adafactor",
        "learning_rate": 0.001,
        "beta_2_decay": -0.8,
        "epsilon_1": 1e-30,
        "epsilon_2": 1e-3,
        "clip_threshold": 1.0,
        "relative_step": True,
    },
}


# Those that can update some rows of a table have one field more.
WITH_LAZY_ROWS = ("SGD", "RMSProp", "Adagrad", "AdamConfig", "AdamExp", "AdamWeightDecay")


@pytest.mark.parametrize("name", DEFAULTS)
def test_fields_and_defaults(name: str) -> None:
    added = {"lazy_rows": False} if name.startswith(WITH_LAZY_ROWS) else {}
    assert getattr(optimization, name)().as_dict() == {**CLIP, **added, **DEFAULTS[name]}


def test_whole_numbers_become_floats() -> None:
    momentum = optimization.SGDConfig({"momentum": 0}).momentum
    assert isinstance(momentum, float)
