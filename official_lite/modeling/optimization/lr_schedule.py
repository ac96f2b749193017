"""Learning-rate schedules that extend Keras' with offsets, warm-ups and power laws.

A schedule is a function of the number of updates made so far. Its value is finite at every step.
"""

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import keras
import tensorflow as tf
from keras.optimizers import schedules

from official_lite.common import errors

__all__ = [
    "PiecewiseConstantDecayWithOffset",
    "PolynomialDecayWithOffset",
    "ExponentialDecayWithOffset",
    "CosineDecayWithOffset",
    "LinearWarmup",
    "PolynomialWarmUp",
    "DirectPowerDecay",
    "PowerAndLinearDecay",
    "PowerDecayWithOffset",
    "StepCosineDecayWithOffset",
    "TimeDecay",
]


if TYPE_CHECKING:
    from keras.optimizers.schedules import LearningRateSchedule as _ScheduleHalf
else:
    # At runtime the mixin derives from `object`; its subclasses also derive from a schedule.
    _ScheduleHalf = object


class _WithOffset(_ScheduleHalf):
    """Mixin that delays a Keras schedule by `offset` steps; the rate is constant until then.

    List the mixin before the Keras schedule among the base classes.

    Args:
        offset: The step at which the schedule begins.
        **kwargs: Arguments of the Keras schedule.
    """

    def __init__(self, offset: int = 0, **kwargs: Any) -> None:
        """Create the Keras schedule and delay it by `offset` steps."""
        super().__init__(**kwargs)
        self.offset = offset

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        # Avoid a negative step, at which a decay would increase the learning rate.
        since_offset = tf.maximum(tf.convert_to_tensor(step) - self.offset, 0)
        return super().__call__(since_offset)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"offset": self.offset}


@keras.saving.register_keras_serializable("official_lite")
class PiecewiseConstantDecayWithOffset(_WithOffset, schedules.PiecewiseConstantDecay):
    """Piecewise constant schedule: each value applies up to and including its boundary.

    The next value applies from the step after the boundary.
    """

    base_lr_class = schedules.PiecewiseConstantDecay


@keras.saving.register_keras_serializable("official_lite")
class PolynomialDecayWithOffset(_WithOffset, schedules.PolynomialDecay):
    """Polynomial decay from the initial to the end learning rate."""

    base_lr_class = schedules.PolynomialDecay


@keras.saving.register_keras_serializable("official_lite")
class ExponentialDecayWithOffset(_WithOffset, schedules.ExponentialDecay):
    """Exponential decay: the rate is multiplied by `decay_rate` every `decay_steps` steps."""

    base_lr_class = schedules.ExponentialDecay


@keras.saving.register_keras_serializable("official_lite")
class CosineDecayWithOffset(_WithOffset, schedules.CosineDecay):
    """Cosine decay from the initial learning rate to `alpha` times that rate."""

    base_lr_class = schedules.CosineDecay


@dataclasses.dataclass(eq=False)
class _Schedule(schedules.LearningRateSchedule):
    """Base class of schedules whose fields are the arguments of their constructors."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments, with a wrapped schedule serialized."""
        return {
            name: schedules.serialize(value) if callable(value) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build a schedule from the result of `get_config`."""
        return cls(
            **{
                name: schedules.deserialize(value) if isinstance(value, dict) else value
                for name, value in config.items()
            }
        )


def _rate_at(step: tf.Tensor | int, rate: schedules.LearningRateSchedule | float) -> tf.Tensor:
    """Return the float32 value of a schedule or a constant at a step."""
    return tf.cast(rate(step) if callable(rate) else rate, tf.float32)


@keras.saving.register_keras_serializable("official_lite")
@dataclasses.dataclass(eq=False)
class TimeDecay(_Schedule):
    """Schedule that divides another by `1 + decay * step`, like the argument `decay` of Keras 2.

    Args:
        learning_rate: A schedule or a constant.
        decay: The decay per step.
    """

    learning_rate: schedules.LearningRateSchedule | float
    decay: float

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        """Return the learning rate at a step."""
        divisor = 1.0 + self.decay * tf.cast(step, tf.float32)
        return _rate_at(step, self.learning_rate) / divisor


@dataclasses.dataclass(eq=False)
class _WarmUp(_Schedule, abc.ABC):
    """Base class of schedules that replace another schedule for the first `warmup_steps`.

    Args:
        after_warmup_lr_sched: A schedule or a constant.
        warmup_steps: The length of the warm-up in steps. The warm-up does not delay the wrapped
            schedule.
    """

    after_warmup_lr_sched: schedules.LearningRateSchedule | float
    warmup_steps: int

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        float_step = tf.cast(step, tf.float32)
        target = _rate_at(self.warmup_steps, self.after_warmup_lr_sched)
        # `tf.where` never selects the rate of a warm-up of 0 steps, but still evaluates it, so
        # avoid a division by 0.
        warming = self._warming(float_step, max(self.warmup_steps, 1), target)
        after = _rate_at(step, self.after_warmup_lr_sched)
        return tf.where(float_step < self.warmup_steps, warming, after)

    @abc.abstractmethod
    def _warming(self, step: tf.Tensor, warmup_steps: int, target: tf.Tensor) -> tf.Tensor:
        """Return the learning rate at a float32 step of a warm-up that ends at `target`."""


@keras.saving.register_keras_serializable("official_lite")
@dataclasses.dataclass(eq=False)
class LinearWarmup(_WarmUp):
    """Linear warm-up to the value that the wrapped schedule has at the end of the warm-up.

    Args:
        after_warmup_lr_sched: A schedule or a constant.
        warmup_steps: The length of the warm-up in steps. The warm-up does not delay the wrapped
            schedule.
        warmup_learning_rate: The learning rate at step 0.
        name: The schedule's name.
    """

    warmup_learning_rate: float
    name: str | None = None

    def _warming(self, step: tf.Tensor, warmup_steps: int, target: tf.Tensor) -> tf.Tensor:
        start = self.warmup_learning_rate
        return start + step / warmup_steps * (target - start)


@keras.saving.register_keras_serializable("official_lite")
@dataclasses.dataclass(eq=False)
class PolynomialWarmUp(_WarmUp):
    """Polynomial warm-up to the value that the wrapped schedule has at the end of the warm-up.

    The learning rate is `(step / warmup_steps) ** power` times that value. Step 0 uses the learning
    rate of step 1, so that the first update has an effect.

    Args:
        after_warmup_lr_sched: A schedule or a constant.
        warmup_steps: The length of the warm-up in steps. The warm-up does not delay the wrapped
            schedule.
        power: The exponent; 1 gives a straight line.
        name: The schedule's name.
    """

    power: float = 1.0
    name: str | None = "PolynomialWarmup"

    def _warming(self, step: tf.Tensor, warmup_steps: int, target: tf.Tensor) -> tf.Tensor:
        return target * tf.pow(tf.maximum(step, 1.0) / warmup_steps, self.power)


@keras.saving.register_keras_serializable("official_lite")
@dataclasses.dataclass(eq=False)
class DirectPowerDecay(_Schedule):
    """Power-law schedule: `initial_learning_rate * max(step, 1) ** power`."""

    initial_learning_rate: float
    power: float = 1.0
    name: str = "DirectPowerDecay"

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        return self.initial_learning_rate * _power(tf.cast(step, tf.float32), self.power)


@keras.saving.register_keras_serializable("official_lite")
@dataclasses.dataclass(eq=False)
class PowerAndLinearDecay(_Schedule):
    """Power-law schedule that decays linearly to zero at the end.

    With `s = step - offset`, the learning rate is `initial_learning_rate * max(s, 1) ** power`.
    Over the last `linear_decay_fraction` of `total_decay_steps` it is also multiplied by a factor
    that falls linearly from 1 to 0. After `total_decay_steps` it is zero.
    """

    initial_learning_rate: float
    total_decay_steps: int
    power: float = 1.0
    linear_decay_fraction: float = 0.1
    offset: int = 0
    name: str = "PowerAndLinearDecay"

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        step = tf.cast(step, tf.float32) - self.offset
        learning_rate = self.initial_learning_rate * _power(step, self.power)
        linear_steps = self.total_decay_steps * self.linear_decay_fraction
        if linear_steps <= 0:
            return learning_rate
        return learning_rate * tf.clip_by_value(
            (self.total_decay_steps - step) / linear_steps, 0.0, 1.0
        )


@keras.saving.register_keras_serializable("official_lite")
@dataclasses.dataclass(eq=False)
class PowerDecayWithOffset(_Schedule):
    """Power-law schedule that starts after `offset` steps.

    After `offset` steps the learning rate is `initial_learning_rate * (step - offset) ** power`, at
    most `pre_offset_learning_rate`. Until then it is `pre_offset_learning_rate`.
    """

    initial_learning_rate: float
    power: float = 1.0
    offset: int = 0
    pre_offset_learning_rate: float = 1.0e6
    name: str = "PowerDecayWithOffset"

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        step = tf.cast(step, tf.float32) - self.offset
        before = tf.constant(self.pre_offset_learning_rate, tf.float32)
        after = self.initial_learning_rate * _power(step, self.power)
        return tf.where(step > 0, tf.minimum(after, before), before)


@keras.saving.register_keras_serializable("official_lite")
@dataclasses.dataclass(eq=False)
class StepCosineDecayWithOffset(_Schedule):
    """Cosine decay from each value to the next, starting at the boundary of the value.

    With boundaries `[0, 1000]` and values `[1.0, 0.5]`, the learning rate falls from 1.0 to 0.5
    over 1000 steps and then stays at 0.5.

    Args:
        boundaries: The steps at which the values are reached, in ascending order.
        values: The learning rates, one for each boundary.
        offset: A number of steps added to every boundary.
        name: The schedule's name.

    Raises:
        ConfigValueError: There are no values, the numbers of values and boundaries differ, or the
            boundaries do not ascend.
    """

    boundaries: Sequence[int]
    values: Sequence[float]
    offset: int = 0
    name: str = "StepCosineDecayWithOffset"

    def __post_init__(self) -> None:
        self.boundaries, self.values = list(self.boundaries), list(self.values)
        if not self.values or len(self.boundaries) != len(self.values):
            raise errors.ConfigValueError(
                f"Expected one value for each boundary, got boundaries {self.boundaries} and "
                f"values {self.values}."
            )
        if any(start >= end for start, end in itertools.pairwise(self.boundaries)):
            raise errors.ConfigValueError(
                f"Boundaries must be in ascending order; got {self.boundaries}."
            )

    def __call__(self, global_step: tf.Tensor | int) -> tf.Tensor:
        step = tf.cast(global_step, tf.float32) - self.offset
        learning_rate = tf.constant(self.values[0], tf.float32)
        corners = zip(self.boundaries, self.values, strict=True)
        for (start, value), (end, next_value) in itertools.pairwise(corners):
            progress = tf.clip_by_value((step - start) / (end - start), 0.0, 1.0)
            left = (tf.cos(math.pi * progress) + 1.0) / 2.0
            decayed = (value - next_value) * left + next_value
            learning_rate = tf.where(step >= start, decayed, learning_rate)
        return learning_rate


def _power(step: tf.Tensor, power: float) -> tf.Tensor:
    """Return `max(step, 1) ** power`; step 0 to a negative power would be infinite."""
    return tf.pow(tf.maximum(step, 1.0), power)
