"""Configs of the learning-rate schedules and warm-ups in `lr_schedule`.

A field whose default is None must be set before the schedule can be built. A ratio field is a
fraction of `trainer.train_steps` and stands in for the corresponding field in steps;
`config.epochs` converts it. For example, with a `decay_ratio` of 1 the decay ends with the
training, whatever its length.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import ClassVar

from official_lite.common import errors
from official_lite.modeling.hyperparams import base_config

__all__ = [
    "ConstantLrConfig",
    "StepwiseLrConfig",
    "ExponentialLrConfig",
    "PolynomialLrConfig",
    "CosineLrConfig",
    "DirectPowerLrConfig",
    "PowerAndLinearDecayLrConfig",
    "PowerDecayWithOffsetLrConfig",
    "StepCosineLrConfig",
    "LinearWarmupConfig",
    "PolynomialWarmupConfig",
]

# Each dict maps a field in steps to the ratio field that may replace it.
_WARMUP = {"warmup_steps": "warmup_ratio"}
_DECAY = {"decay_steps": "decay_ratio"}
_TOTAL_DECAY = {"total_decay_steps": "decay_ratio"}
_BOUNDARIES = {"boundaries": "boundary_ratios"}


class _WithRatios(base_config.Config):
    """Base class of configs with ratio fields, which are the values of `CLEARS`.

    All ratios must be from 0 to 1, and a list of ratios must be in ascending order.
    """

    def validate_fields(self) -> None:
        for name in self.CLEARS.values():
            ratios = getattr(self, name)
            values = ratios if isinstance(ratios, list) else [ratios or 0.0]
            if not all(0 <= value <= 1 for value in values):
                raise errors.ConfigValueError(
                    f"`{name}` is {ratios}; expected fractions of `trainer.train_steps`, from 0 to "
                    "1."
                )
            if any(before >= after for before, after in itertools.pairwise(values)):
                raise errors.ConfigValueError(
                    f"`{name}` is {ratios}; expected ascending fractions."
                )


@dataclasses.dataclass
class ConstantLrConfig(base_config.Config):
    """A constant learning rate."""

    name: str = "Constant"
    learning_rate: float = 0.1


@dataclasses.dataclass
class StepwiseLrConfig(_WithRatios):
    """Piecewise constant schedule: each value applies up to and including its boundary.

    Attributes:
        boundaries: The last step of each value except the final one, in ascending order.
        values: The learning rates, one more than there are boundaries.
        offset: A number of steps added to every boundary.
        boundary_ratios: The boundaries as fractions of `trainer.train_steps`.
    """

    CLEARS: ClassVar[Mapping[str, str]] = _BOUNDARIES

    name: str = "PiecewiseConstantDecay"
    boundaries: list[int] | None = None
    values: list[float] | None = None
    offset: int = 0
    boundary_ratios: list[float] | None = None


@dataclasses.dataclass
class ExponentialLrConfig(_WithRatios):
    """Exponential decay: `initial_learning_rate * decay_rate ** (step / decay_steps)`.

    Attributes:
        staircase: Whether the exponent is rounded down; None means False.
        offset: The step at which the decay begins.
        decay_ratio: `decay_steps` as a fraction of `trainer.train_steps`.
    """

    CLEARS: ClassVar[Mapping[str, str]] = _DECAY

    name: str = "ExponentialDecay"
    initial_learning_rate: float | None = None
    decay_steps: int | None = None
    decay_rate: float | None = None
    staircase: bool | None = None
    offset: int = 0
    decay_ratio: float | None = None


@dataclasses.dataclass
class PolynomialLrConfig(_WithRatios):
    """Polynomial decay from the initial to the end learning rate in `decay_steps`.

    Attributes:
        power: The exponent; 1 gives a straight line.
        cycle: Whether the decay restarts after `decay_steps`. The next multiple of `decay_steps`
            after the current step then becomes the length of the decay.
        offset: The step at which the decay begins.
        decay_ratio: `decay_steps` as a fraction of `trainer.train_steps`.
    """

    CLEARS: ClassVar[Mapping[str, str]] = _DECAY

    name: str = "PolynomialDecay"
    initial_learning_rate: float | None = None
    decay_steps: int | None = None
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False
    offset: int = 0
    decay_ratio: float | None = None


@dataclasses.dataclass
class CosineLrConfig(_WithRatios):
    """Cosine decay over `decay_steps`.

    Attributes:
        alpha: The final learning rate as a fraction of `initial_learning_rate`.
        offset: The step at which the decay begins.
        decay_ratio: `decay_steps` as a fraction of `trainer.train_steps`.
    """

    CLEARS: ClassVar[Mapping[str, str]] = _DECAY

    name: str = "CosineDecay"
    initial_learning_rate: float | None = None
    decay_steps: int | None = None
    alpha: float = 0.0
    offset: int = 0
    decay_ratio: float | None = None


@dataclasses.dataclass
class DirectPowerLrConfig(base_config.Config):
    """Power-law schedule: `initial_learning_rate * step ** power`."""

    name: str = "DirectPowerDecay"
    initial_learning_rate: float | None = None
    power: float = -0.5


@dataclasses.dataclass
class PowerAndLinearDecayLrConfig(_WithRatios):
    """Power-law schedule that decays linearly to zero at the end.

    Attributes:
        total_decay_steps: The step at which the learning rate reaches zero, counted from `offset`.
        linear_decay_fraction: The fraction of `total_decay_steps` over which the rate also decays
            linearly to zero.
        offset: The step at which the decay begins.
        decay_ratio: `total_decay_steps` as a fraction of `trainer.train_steps`.
    """

    CLEARS: ClassVar[Mapping[str, str]] = _TOTAL_DECAY

    name: str = "PowerAndLinearDecay"
    initial_learning_rate: float | None = None
    total_decay_steps: int | None = None
    power: float = -0.5
    linear_decay_fraction: float = 0.1
    offset: int = 0
    decay_ratio: float | None = None


@dataclasses.dataclass
class PowerDecayWithOffsetLrConfig(base_config.Config):
    """Power-law schedule: `initial_learning_rate * (step - offset) ** power` after `offset` steps.

    Attributes:
        pre_offset_learning_rate: The learning rate up to `offset`, and an upper bound afterwards.
    """

    name: str = "PowerDecayWithOffset"
    initial_learning_rate: float | None = None
    power: float = -0.5
    offset: int = 0
    pre_offset_learning_rate: float = 1.0e6


@dataclasses.dataclass
class StepCosineLrConfig(_WithRatios):
    """Cosine decay from each value to the next.

    Attributes:
        boundaries: The steps at which the values are reached, in ascending order.
        values: The learning rates, one for each boundary.
        offset: A number of steps added to every boundary.
        boundary_ratios: The boundaries as fractions of `trainer.train_steps`.
    """

    CLEARS: ClassVar[Mapping[str, str]] = _BOUNDARIES

    name: str = "StepCosineDecayWithOffset"
    boundaries: list[int] | None = None
    values: list[float] | None = None
    offset: int = 0
    boundary_ratios: list[float] | None = None


@dataclasses.dataclass
class LinearWarmupConfig(_WithRatios):
    """Linear warm-up to the value that the schedule has at the end of the warm-up.

    Attributes:
        warmup_learning_rate: The learning rate at step 0.
        warmup_steps: The length of the warm-up. The warm-up does not delay the schedule.
        warmup_ratio: `warmup_steps` as a fraction of `trainer.train_steps`.
    """

    CLEARS: ClassVar[Mapping[str, str]] = _WARMUP

    name: str = "linear"
    warmup_learning_rate: float = 0.0
    warmup_steps: int | None = None
    warmup_ratio: float | None = None


@dataclasses.dataclass
class PolynomialWarmupConfig(_WithRatios):
    """Polynomial warm-up: `(step / warmup_steps) ** power` times the schedule's value at its end.

    Attributes:
        warmup_ratio: `warmup_steps` as a fraction of `trainer.train_steps`.
    """

    CLEARS: ClassVar[Mapping[str, str]] = _WARMUP

    name: str = "polynomial"
    power: float = 1.0
    warmup_steps: int | None = None
    warmup_ratio: float | None = None
