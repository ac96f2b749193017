"""Fields and defaults are those of the Model Garden."""

from typing import Any

import pytest

from official_lite.modeling import optimization

INITIAL = {"initial_learning_rate": None}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ConstantLrConfig": {"name": "Constant", "learning_rate": 0.1},
    "StepwiseLrConfig": {
        "name": "PiecewiseConstantDecay",
        "boundaries": None,
        "values": None,
        "offset": 0,
    },
    "ExponentialLrConfig": {
        "name": "ExponentialDecay",
        **INITIAL,
        "decay_steps": None,
        "decay_rate": None,
        "staircase": None,
        "offset": 0,
    },
    "PolynomialLrConfig": {
        "name": "PolynomialDecay",
        **INITIAL,
        "decay_steps": None,
        "end_learning_rate": 1e-4,
        "power": 1.0,
        "cycle": False,
        "offset": 0,
    },
    "CosineLrConfig": {
        "name": "CosineDecay",
        **INITIAL,
        "decay_steps": None,
        "alpha": 0.0,
        "offset": 0,
    },
    "DirectPowerLrConfig": {"name": "DirectPowerDecay", **INITIAL, "power": -0.5},
    "PowerAndLinearDecayLrConfig": {
        "name": "PowerAndLinearDecay",
        **INITIAL,
        "total_decay_steps": None,
        "power": -0.5,
        "linear_decay_fraction": 0.1,
        "offset": 0,
    },
    "PowerDecayWithOffsetLrConfig": {
        "name": "PowerDecayWithOffset",
        **INITIAL,
        "power": -0.5,
        "offset": 0,
        "pre_offset_learning_rate": 1e6,
    },
    "StepCosineLrConfig": {
        "name": "StepCosineDecayWithOffset",
        "boundaries": None,
        "values": None,
        "offset": 0,
    },
    "LinearWarmupConfig": {"name": "linear", "warmup_learning_rate": 0.0, "warmup_steps": None},
    "PolynomialWarmupConfig": {"name": "polynomial", "power": 1.0, "warmup_steps": None},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_fields_and_defaults(name: str) -> None:
    assert getattr(optimization, name)().as_dict() == DEFAULTS[name]
