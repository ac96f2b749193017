"""Fields and defaults are those of the Model Garden, and the ratios."""

from typing import Any

import pytest

from official_lite.common import errors
from official_lite.modeling import optimization

INITIAL = {"initial_learning_rate": None}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ConstantLrConfig": {"name": "Constant", "learning_rate": 0.1},
    "StepwiseLrConfig": {
        "name": "PiecewiseConstantDecay",
        "boundaries": None,
        "values": None,
        "offset": 0,
        "boundary_ratios": None,
    },
    "ExponentialLrConfig": {
        "name": "ExponentialDecay",
        **INITIAL,
        "decay_steps": None,
        "decay_rate": None,
        "staircase": None,
        "offset": 0,
        "decay_ratio": None,
    },
    "PolynomialLrConfig": {
        "name": "PolynomialDecay",
        **INITIAL,
        "decay_steps": None,
        "end_learning_rate": 1e-4,
        "power": 1.0,
        "cycle": False,
        "offset": 0,
        "decay_ratio": None,
    },
    "CosineLrConfig": {
        "name": "CosineDecay",
        **INITIAL,
        "decay_steps": None,
        "alpha": 0.0,
        "offset": 0,
        "decay_ratio": None,
    },
    "DirectPowerLrConfig": {"name": "DirectPowerDecay", **INITIAL, "power": -0.5},
    "PowerAndLinearDecayLrConfig": {
        "name": "PowerAndLinearDecay",
        **INITIAL,
        "total_decay_steps": None,
        "power": -0.5,
        "linear_decay_fraction": 0.1,
        "offset": 0,
        "decay_ratio": None,
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
        "boundary_ratios": None,
    },
    "LinearWarmupConfig": {
        "name": "linear",
        "warmup_learning_rate": 0.0,
        "warmup_steps": None,
        "warmup_ratio": None,
    },
    "PolynomialWarmupConfig": {
        "name": "polynomial",
        "power": 1.0,
        "warmup_steps": None,
        "warmup_ratio": None,
    },
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_fields_and_defaults(name: str) -> None:
    assert getattr(optimization, name)().as_dict() == DEFAULTS[name]


@pytest.mark.parametrize(
    "config",
    [
        optimization.LinearWarmupConfig(warmup_ratio=1.5),
        optimization.CosineLrConfig(decay_ratio=-0.1),
        optimization.StepwiseLrConfig(boundary_ratios=[0.5, 0.4]),
        optimization.StepCosineLrConfig(boundary_ratios=[0.0, 2.0]),
    ],
)
def test_ratio_that_is_no_part_of_the_training_is_refused(config: Any) -> None:
    with pytest.raises(errors.ConfigValueError, match="ratio"):
        config.validate()


def test_steps_given_later_take_the_place_of_a_ratio() -> None:
    config = optimization.CosineLrConfig(decay_ratio=0.5)
    config.override({"decay_steps": 10})
    assert (config.decay_steps, config.decay_ratio) == (10, None)
