"""Configs of the learning-rate schedules and warm-ups in `lr_schedule`.

A field whose default is None must be set before the schedule can be built. A ratio, a fraction of
`trainer.train_steps`, sets the steps whose place it takes; `core.epochs` works them out. So with a
`decay_ratio` of 1 a decay ends with the training, however long that is made.
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

# Field in steps -> the ratio that may be given in its place.
_WARMUP = {"warmup_steps": "warmup_ratio"}
_DECAY = {"decay_steps": "decay_ratio"}
_TOTAL_DECAY = {"total_decay_steps": "decay_ratio"}
_BOUNDARIES = {"boundaries": "boundary_ratios"}


class _WithRatios(base_config.Config):
    """Checks the ratios that `CLEARS` names: one, or an ascending list."""

    def validate_fields(self) -> None:
        for name in self.CLEARS.values():
            ratios = getattr(self, name)
            values = ratios if isinstance(ratios, list) else [ratios or 0.0]
            if not all(0 <= value <= 1 for value in values):
                raise errors.ConfigValueError(
                    f"`{name}` is {ratios}; wanted a fraction of the training, from 0 to 1."
                )
            if any(before >= after for before, after in itertools.pairwise(values)):
                raise errors.ConfigValueError(f"`{name}` is {ratios}; wanted ascending fractions.")


@dataclasses.dataclass
class ConstantLrConfig(base_config.Config):
    """The same learning rate throughout."""

    name: str = "Constant"
    learning_rate: float = 0.1


@dataclasses.dataclass
class StepwiseLrConfig(_WithRatios):
    """One value up to and including each boundary, the next one after it.

    Attributes:
        boundaries: The last step of each value but the last, ascending.
        values: The learning rates, one more than there are boundaries.
        offset: Added to every boundary.
        boundary_ratios: The boundaries, as fractions of the training.
    """

    CLEARS: ClassVar[Mapping[str, str]] = _BOUNDARIES

    name: str = "PiecewiseConstantDecay"
    boundaries: list[int] | None = None
    values: list[float] | None = None
    offset: int = 0
    boundary_ratios: list[float] | None = None


@dataclasses.dataclass
class ExponentialLrConfig(_WithRatios):
    """`initial_learning_rate * decay_rate ** (step / decay_steps)`.

    Attributes:
        staircase: Whether the exponent is rounded down; None is False.
        offset: The step at which the decay begins.
        decay_ratio: `decay_steps`, as a fraction of the training.
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
    """From the initial to the end learning rate in `decay_steps`, along a polynomial.

    Attributes:
        power: 1 is a straight line.
        cycle: Whether to start anew after `decay_steps`, over twice, three times … the length.
        offset: The step at which the decay begins.
        decay_ratio: `decay_steps`, as a fraction of the training.
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
    """Half a cosine over `decay_steps`.

    Attributes:
        alpha: What is left at the end, as a fraction of `initial_learning_rate`.
        offset: The step at which the decay begins.
        decay_ratio: `decay_steps`, as a fraction of the training.
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
    """`initial_learning_rate * step ** power`."""

    name: str = "DirectPowerDecay"
    initial_learning_rate: float | None = None
    power: float = -0.5


@dataclasses.dataclass
class PowerAndLinearDecayLrConfig(_WithRatios):
    """A power of the step that a straight line takes to zero at the end.

    Attributes:
        total_decay_steps: When zero is reached, counted from `offset`.
        linear_decay_fraction: Which part of these steps the straight line takes.
        offset: The step at which the decay begins.
        decay_ratio: `total_decay_steps`, as a fraction of the training.
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
    """`initial_learning_rate * (step - offset) ** power` after `offset` steps.

    Attributes:
        pre_offset_learning_rate: The learning rate until then, and an upper bound afterwards.
    """

    name: str = "PowerDecayWithOffset"
    initial_learning_rate: float | None = None
    power: float = -0.5
    offset: int = 0
    pre_offset_learning_rate: float = 1.0e6


@dataclasses.dataclass
class StepCosineLrConfig(_WithRatios):
    """Half a cosine from each value to the next.

    Attributes:
        boundaries: The steps at which the values are reached, ascending.
        values: The learning rates, one for each boundary.
        offset: Added to every boundary.
        boundary_ratios: The boundaries, as fractions of the training.
    """

    CLEARS: ClassVar[Mapping[str, str]] = _BOUNDARIES

    name: str = "StepCosineDecayWithOffset"
    boundaries: list[int] | None = None
    values: list[float] | None = None
    offset: int = 0
    boundary_ratios: list[float] | None = None


@dataclasses.dataclass
class LinearWarmupConfig(_WithRatios):
    """In a straight line to what the schedule gives at the end of the warm-up.

    Attributes:
        warmup_learning_rate: Where the line begins.
        warmup_steps: The length of the warm-up, which the schedule is not delayed by.
        warmup_ratio: `warmup_steps`, as a fraction of the training.
    """

    CLEARS: ClassVar[Mapping[str, str]] = _WARMUP

    name: str = "linear"
    warmup_learning_rate: float = 0.0
    warmup_steps: int | None = None
    warmup_ratio: float | None = None


@dataclasses.dataclass
class PolynomialWarmupConfig(_WithRatios):
    """`(step / warmup_steps) ** power` of what the schedule gives at the end of the warm-up.

    Attributes:
        warmup_ratio: `warmup_steps`, as a fraction of the training.
    """

    CLEARS: ClassVar[Mapping[str, str]] = _WARMUP

    name: str = "polynomial"
    power: float = 1.0
    warmup_steps: int | None = None
    warmup_ratio: float | None = None
