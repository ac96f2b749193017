"""Configs of the learning-rate schedules and warm-ups in `lr_schedule`.

A field whose default is None must be set before the schedule can be built.
"""

import dataclasses

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


@dataclasses.dataclass
class ConstantLrConfig(base_config.Config):
    """The same learning rate throughout."""

    name: str = "Constant"
    learning_rate: float = 0.1


@dataclasses.dataclass
class StepwiseLrConfig(base_config.Config):
    """One value up to and including each boundary, the next one after it.

    Attributes:
        boundaries: The last step of each value but the last, ascending.
        values: The learning rates, one more than there are boundaries.
        offset: Added to every boundary.
    """

    name: str = "PiecewiseConstantDecay"
    boundaries: list[int] | None = None
    values: list[float] | None = None
    offset: int = 0


@dataclasses.dataclass
class ExponentialLrConfig(base_config.Config):
    """`initial_learning_rate * decay_rate ** (step / decay_steps)`.

    Attributes:
        staircase: Whether the exponent is rounded down; None is False.
        offset: The step at which the decay begins.
    """

    name: str = "ExponentialDecay"
    initial_learning_rate: float | None = None
    decay_steps: int | None = None
    decay_rate: float | None = None
    staircase: bool | None = None
    offset: int = 0


@dataclasses.dataclass
class PolynomialLrConfig(base_config.Config):
    """From the initial to the end learning rate in `decay_steps`, along a polynomial.

    Attributes:
        power: 1 is a straight line.
        cycle: Whether to start anew after `decay_steps`, over twice, three times … the length.
        offset: The step at which the decay begins.
    """

    name: str = "PolynomialDecay"
    initial_learning_rate: float | None = None
    decay_steps: int | None = None
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False
    offset: int = 0


@dataclasses.dataclass
class CosineLrConfig(base_config.Config):
    """Half a cosine over `decay_steps`.

    Attributes:
        alpha: What is left at the end, as a fraction of `initial_learning_rate`.
        offset: The step at which the decay begins.
    """

    name: str = "CosineDecay"
    initial_learning_rate: float | None = None
    decay_steps: int | None = None
    alpha: float = 0.0
    offset: int = 0


@dataclasses.dataclass
class DirectPowerLrConfig(base_config.Config):
    """`initial_learning_rate * step ** power`."""

    name: str = "DirectPowerDecay"
    initial_learning_rate: float | None = None
    power: float = -0.5


@dataclasses.dataclass
class PowerAndLinearDecayLrConfig(base_config.Config):
    """A power of the step that a straight line takes to zero at the end.

    Attributes:
        total_decay_steps: When zero is reached, counted from `offset`.
        linear_decay_fraction: Which part of these steps the straight line takes.
        offset: The step at which the decay begins.
    """

    name: str = "PowerAndLinearDecay"
    initial_learning_rate: float | None = None
    total_decay_steps: int | None = None
    power: float = -0.5
    linear_decay_fraction: float = 0.1
    offset: int = 0


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
class StepCosineLrConfig(base_config.Config):
    """Half a cosine from each value to the next.

    Attributes:
        boundaries: The steps at which the values are reached, ascending.
        values: The learning rates, one for each boundary.
        offset: Added to every boundary.
    """

    name: str = "StepCosineDecayWithOffset"
    boundaries: list[int] | None = None
    values: list[float] | None = None
    offset: int = 0


@dataclasses.dataclass
class LinearWarmupConfig(base_config.Config):
    """In a straight line to what the schedule gives at the end of the warm-up.

    Attributes:
        warmup_learning_rate: Where the line begins.
        warmup_steps: The length of the warm-up, which the schedule is not delayed by.
    """

    name: str = "linear"
    warmup_learning_rate: float = 0.0
    warmup_steps: int | None = None


@dataclasses.dataclass
class PolynomialWarmupConfig(base_config.Config):
    """`(step / warmup_steps) ** power` of what the schedule gives at the end of the warm-up."""

    name: str = "polynomial"
    power: float = 1.0
    warmup_steps: int | None = None
