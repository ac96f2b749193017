"""Learning-rate schedules beyond Keras': with an offset, with a warm-up, of powers.

A schedule is a function of the number of updates made so far, and finite for each of them.
"""

import abc
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
]


if TYPE_CHECKING:
    from keras.optimizers.schedules import LearningRateSchedule as _ScheduleHalf
else:
    # A mixin comes before the class of a schedule, which has the other half.
    _ScheduleHalf = object


class _WithOffset(_ScheduleHalf):
    """Mixin before a Keras schedule: what that gives `offset` steps later, constant before."""

    def __init__(self, offset: int = 0, **kwargs: Any) -> None:
        """Delays the schedule.

        Args:
            offset: The step at which the schedule begins.
            **kwargs: What the schedule itself takes.
        """
        super().__init__(**kwargs)
        self.offset = offset

    def __call__(self, step: Any) -> tf.Tensor:
        # Before its beginning a decay would be a growth backwards in time.
        since_offset = tf.maximum(tf.convert_to_tensor(step) - self.offset, 0)
        return super().__call__(since_offset)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"offset": self.offset}


@keras.saving.register_keras_serializable("official_lite")
class PiecewiseConstantDecayWithOffset(_WithOffset, schedules.PiecewiseConstantDecay):
    """One value up to and including each boundary, the next one after it."""

    base_lr_class = schedules.PiecewiseConstantDecay


@keras.saving.register_keras_serializable("official_lite")
class PolynomialDecayWithOffset(_WithOffset, schedules.PolynomialDecay):
    """From the initial to the end learning rate along a polynomial."""

    base_lr_class = schedules.PolynomialDecay


@keras.saving.register_keras_serializable("official_lite")
class ExponentialDecayWithOffset(_WithOffset, schedules.ExponentialDecay):
    """Multiplied by a rate every so many steps."""

    base_lr_class = schedules.ExponentialDecay


@keras.saving.register_keras_serializable("official_lite")
class CosineDecayWithOffset(_WithOffset, schedules.CosineDecay):
    """Half a cosine from the initial learning rate to `alpha` times it."""

    base_lr_class = schedules.CosineDecay


class _WarmUp(schedules.LearningRateSchedule, abc.ABC):
    """Takes the place of another schedule, or of a constant, for the first `warmup_steps`."""

    def __init__(
        self,
        after_warmup_lr_sched: schedules.LearningRateSchedule | float,
        warmup_steps: int,
        name: str | None,
    ) -> None:
        self._after_warmup_lr_sched = after_warmup_lr_sched
        self._warmup_steps = warmup_steps
        self._name = name

    def __call__(self, step: Any) -> tf.Tensor:
        float_step = tf.cast(step, tf.float32)
        target = self._after(self._warmup_steps)
        # A warm-up of no steps is never chosen below, but must not divide by zero either.
        warming = self._warming(float_step, max(self._warmup_steps, 1), target)
        return tf.where(float_step < self._warmup_steps, warming, self._after(step))

    @abc.abstractmethod
    def _warming(self, step: tf.Tensor, warmup_steps: int, target: tf.Tensor) -> tf.Tensor:
        """The rate at a float32 step of the warm-up, which ends at `target`."""

    def _after(self, step: Any) -> tf.Tensor:
        after = self._after_warmup_lr_sched
        if isinstance(after, schedules.LearningRateSchedule):
            after = after(step)
        return tf.cast(after, tf.float32)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, the schedule with its class."""
        after = self._after_warmup_lr_sched
        if isinstance(after, schedules.LearningRateSchedule):
            after = schedules.serialize(after)
        return {
            "after_warmup_lr_sched": after,
            "warmup_steps": self._warmup_steps,
            "name": self._name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The inverse of `get_config`."""
        after = config["after_warmup_lr_sched"]
        if isinstance(after, dict):
            after = schedules.deserialize(after)
        return cls(**(config | {"after_warmup_lr_sched": after}))


@keras.saving.register_keras_serializable("official_lite")
class LinearWarmup(_WarmUp):
    """In a straight line to what the schedule gives at the end of the warm-up."""

    def __init__(
        self,
        after_warmup_lr_sched: schedules.LearningRateSchedule | float,
        warmup_steps: int,
        warmup_learning_rate: float,
        name: str | None = None,
    ) -> None:
        """Sets the line.

        Args:
            after_warmup_lr_sched: A schedule or a constant.
            warmup_steps: The length of the warm-up, which the schedule is not delayed by.
            warmup_learning_rate: Where the line begins.
            name: The schedule's name.
        """
        super().__init__(after_warmup_lr_sched, warmup_steps, name)
        self._warmup_learning_rate = warmup_learning_rate

    def _warming(self, step: tf.Tensor, warmup_steps: int, target: tf.Tensor) -> tf.Tensor:
        start = self._warmup_learning_rate
        return start + step / warmup_steps * (target - start)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return super().get_config() | {"warmup_learning_rate": self._warmup_learning_rate}


@keras.saving.register_keras_serializable("official_lite")
class PolynomialWarmUp(_WarmUp):
    """`(step / warmup_steps) ** power` of what the schedule gives at the end of the warm-up.

    Step 0 counts as step 1, so that the first update is not lost.
    """

    def __init__(
        self,
        after_warmup_lr_sched: schedules.LearningRateSchedule | float,
        warmup_steps: int,
        power: float = 1.0,
        name: str | None = "PolynomialWarmup",
    ) -> None:
        """Sets the curve.

        Args:
            after_warmup_lr_sched: A schedule or a constant.
            warmup_steps: The length of the warm-up, which the schedule is not delayed by.
            power: 1 is a straight line.
            name: The schedule's name.
        """
        super().__init__(after_warmup_lr_sched, warmup_steps, name)
        self._power = power

    def _warming(self, step: tf.Tensor, warmup_steps: int, target: tf.Tensor) -> tf.Tensor:
        return target * tf.pow(tf.maximum(step, 1.0) / warmup_steps, self._power)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return super().get_config() | {"power": self._power}


@keras.saving.register_keras_serializable("official_lite")
class DirectPowerDecay(schedules.LearningRateSchedule):
    """`initial_learning_rate * max(step, 1) ** power`."""

    def __init__(
        self,
        initial_learning_rate: float,
        power: float = 1.0,
        name: str = "DirectPowerDecay",
    ) -> None:
        self._initial_learning_rate = initial_learning_rate
        self._power = power
        self._name = name

    def __call__(self, step: Any) -> tf.Tensor:
        return self._initial_learning_rate * _power(tf.cast(step, tf.float32), self._power)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "initial_learning_rate": self._initial_learning_rate,
            "power": self._power,
            "name": self._name,
        }


@keras.saving.register_keras_serializable("official_lite")
class PowerAndLinearDecay(schedules.LearningRateSchedule):
    """A power of the step that a straight line takes to zero at the end.

    With `s = step - offset`: `initial_learning_rate * max(s, 1) ** power`, times what is left of
    the last `linear_decay_fraction` of `total_decay_steps`; zero after them.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        total_decay_steps: int,
        power: float = 1.0,
        linear_decay_fraction: float = 0.1,
        offset: int = 0,
        name: str = "PowerAndLinearDecay",
    ) -> None:
        self._initial_learning_rate = initial_learning_rate
        self._total_decay_steps = total_decay_steps
        self._power = power
        self._linear_decay_fraction = linear_decay_fraction
        self._offset = offset
        self._name = name

    def __call__(self, step: Any) -> tf.Tensor:
        step = tf.cast(step, tf.float32) - self._offset
        learning_rate = self._initial_learning_rate * _power(step, self._power)
        linear_steps = self._total_decay_steps * self._linear_decay_fraction
        if linear_steps <= 0:
            return learning_rate
        return learning_rate * tf.clip_by_value(
            (self._total_decay_steps - step) / linear_steps, 0.0, 1.0
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "initial_learning_rate": self._initial_learning_rate,
            "total_decay_steps": self._total_decay_steps,
            "power": self._power,
            "linear_decay_fraction": self._linear_decay_fraction,
            "offset": self._offset,
            "name": self._name,
        }


@keras.saving.register_keras_serializable("official_lite")
class PowerDecayWithOffset(schedules.LearningRateSchedule):
    """`initial_learning_rate * (step - offset) ** power` after `offset` steps.

    Up to then it is `pre_offset_learning_rate`, and never more than that.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        power: float = 1.0,
        offset: int = 0,
        pre_offset_learning_rate: float = 1.0e6,
        name: str = "PowerDecayWithOffset",
    ) -> None:
        self._initial_learning_rate = initial_learning_rate
        self._power = power
        self._offset = offset
        self._pre_offset_learning_rate = pre_offset_learning_rate
        self._name = name

    def __call__(self, step: Any) -> tf.Tensor:
        step = tf.cast(step, tf.float32) - self._offset
        before = tf.constant(self._pre_offset_learning_rate, tf.float32)
        after = self._initial_learning_rate * _power(step, self._power)
        return tf.where(step > 0, tf.minimum(after, before), before)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "initial_learning_rate": self._initial_learning_rate,
            "power": self._power,
            "offset": self._offset,
            "pre_offset_learning_rate": self._pre_offset_learning_rate,
            "name": self._name,
        }


@keras.saving.register_keras_serializable("official_lite")
class StepCosineDecayWithOffset(schedules.LearningRateSchedule):
    """Half a cosine from each value to the next, each beginning at its boundary.

    With boundaries `[0, 1000]` and values `[1.0, 0.5]` it falls from 1.0 to 0.5 within a thousand
    steps, and stays there.
    """

    def __init__(
        self,
        boundaries: Sequence[int],
        values: Sequence[float],
        offset: int = 0,
        name: str = "StepCosineDecayWithOffset",
    ) -> None:
        """Sets the corner points.

        Args:
            boundaries: The steps at which the values are reached, in ascending order.
            values: The learning rates, one for each boundary.
            offset: Added to every boundary.
            name: The schedule's name.

        Raises:
            ConfigValueError: There is no value, or not one for each boundary, or the boundaries do
                not ascend.
        """
        if not values or len(boundaries) != len(values):
            raise errors.ConfigValueError(
                f"Wanted one value for each boundary, got boundaries {list(boundaries)} and values "
                f"{list(values)}."
            )
        if any(start >= end for start, end in itertools.pairwise(boundaries)):
            raise errors.ConfigValueError(f"Boundaries must ascend: {list(boundaries)}.")
        self.boundaries = list(boundaries)
        self.values = list(values)
        self.offset = offset
        self.name = name

    def __call__(self, global_step: Any) -> tf.Tensor:
        step = tf.cast(global_step, tf.float32) - self.offset
        learning_rate = tf.constant(self.values[0], tf.float32)
        corners = zip(self.boundaries, self.values, strict=True)
        for (start, value), (end, next_value) in itertools.pairwise(corners):
            progress = tf.clip_by_value((step - start) / (end - start), 0.0, 1.0)
            left = (tf.cos(math.pi * progress) + 1.0) / 2.0
            decayed = (value - next_value) * left + next_value
            learning_rate = tf.where(step >= start, decayed, learning_rate)
        return learning_rate

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "boundaries": self.boundaries,
            "values": self.values,
            "offset": self.offset,
            "name": self.name,
        }


def _power(step: tf.Tensor, power: float) -> tf.Tensor:
    """`step ** power`. Step 0 counts as 1: to a negative power it would be infinite."""
    return tf.pow(tf.maximum(step, 1.0), power)
