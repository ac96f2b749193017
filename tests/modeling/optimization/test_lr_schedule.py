"""Each schedule compared with its formula and with the values of the Model Garden."""

import math
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras.optimizers import schedules

from official_lite.common import errors
from official_lite.modeling.optimization import lr_schedule
from tests import rounding

# A schedule computes its rate in about eight operations.
ROUNDINGS = 8
STEPS = (0, 5, 10, 11, 50, 99, 100, 200)
POLYNOMIAL = lr_schedule.PolynomialDecayWithOffset(initial_learning_rate=1.0, decay_steps=100)
COSINE = lr_schedule.CosineDecayWithOffset(initial_learning_rate=1.0, decay_steps=100)


def _half_cosine(progress: float) -> float:
    return (math.cos(math.pi * min(max(progress, 0.0), 1.0)) + 1.0) / 2.0


def _polynomial(step: int) -> float:
    return (1.0 - 1e-4) * (1.0 - min(step, 100) / 100) + 1e-4


# Each schedule and its formula.
SCHEDULES: dict[str, tuple[Any, Callable[[int], float]]] = {
    "piecewise": (
        lr_schedule.PiecewiseConstantDecayWithOffset(
            offset=10, boundaries=[40, 90], values=[1.0, 0.5, 0.25]
        ),
        lambda t: 1.0 if t <= 50 else 0.5 if t <= 100 else 0.25,
    ),
    "polynomial": (
        lr_schedule.PolynomialDecayWithOffset(
            offset=10, initial_learning_rate=1.0, decay_steps=100, power=2.0
        ),
        lambda t: (1 - 1e-4) * (1 - min(max(t - 10, 0), 100) / 100) ** 2 + 1e-4,
    ),
    "exponential": (
        lr_schedule.ExponentialDecayWithOffset(
            offset=10, initial_learning_rate=1.0, decay_steps=40, decay_rate=0.5
        ),
        lambda t: 0.5 ** (max(t - 10, 0) / 40),
    ),
    "cosine": (
        lr_schedule.CosineDecayWithOffset(
            offset=10, initial_learning_rate=1.0, decay_steps=100, alpha=0.1
        ),
        lambda t: 0.9 * _half_cosine((t - 10) / 100) + 0.1,
    ),
    "time_decay": (
        lr_schedule.TimeDecay(COSINE, 0.5),
        lambda t: _half_cosine(t / 100) / (1 + 0.5 * t),
    ),
    "linear_warmup": (
        lr_schedule.LinearWarmup(POLYNOMIAL, 50, 0.1),
        lambda t: 0.1 + t / 50 * (_polynomial(50) - 0.1) if t < 50 else _polynomial(t),
    ),
    "polynomial_warmup": (
        lr_schedule.PolynomialWarmUp(COSINE, 50, 2.0),
        lambda t: 0.5 * (max(t, 1) / 50) ** 2 if t < 50 else _half_cosine(t / 100),
    ),
    "constant_warmup": (
        lr_schedule.LinearWarmup(0.5, 10, 0.0),
        lambda t: min(t / 10, 1.0) * 0.5,
    ),
    "linear_warmup_of_no_steps": (lr_schedule.LinearWarmup(POLYNOMIAL, 0, 0.0), _polynomial),
    "polynomial_warmup_of_no_steps": (lr_schedule.PolynomialWarmUp(POLYNOMIAL, 0), _polynomial),
    "power": (lr_schedule.DirectPowerDecay(1.0, -0.5), lambda t: max(t, 1) ** -0.5),
    "power_linear": (
        lr_schedule.PowerAndLinearDecay(1.0, 100, -0.5, 0.2, offset=10),
        lambda t: max(t - 10, 1) ** -0.5 * min(max((110 - t) / 20, 0.0), 1.0),
    ),
    "power_offset": (
        lr_schedule.PowerDecayWithOffset(1.0, -0.5, 10, 3.0),
        lambda t: min((t - 10) ** -0.5, 3.0) if t > 10 else 3.0,
    ),
    "power_offset_with_a_low_bound": (
        lr_schedule.PowerDecayWithOffset(1.0, -0.5, 10, 0.5),
        lambda t: min((t - 10) ** -0.5, 0.5) if t > 10 else 0.5,
    ),
    "step_cosine": (
        lr_schedule.StepCosineDecayWithOffset([0, 50, 150], [1.0, 0.5, 0.25], offset=7),
        lambda t: 0.25 + 0.5 * _half_cosine((t - 7) / 50) + 0.25 * _half_cosine((t - 57) / 100),
    ),
    "step_cosine_that_waits": (
        lr_schedule.StepCosineDecayWithOffset([100, 200], [1.0, 0.5]),
        lambda t: 0.5 + 0.5 * _half_cosine((t - 100) / 100),
    ),
    "step_cosine_that_rises_to_zero": (
        lr_schedule.StepCosineDecayWithOffset([0, 50, 100], [0.1, 1.0, 0.0]),
        lambda t: 1.0 - 0.9 * _half_cosine(t / 50) if t < 50 else _half_cosine((t - 50) / 50),
    ),
    "step_cosine_with_one_corner": (
        lr_schedule.StepCosineDecayWithOffset([0], [1.0]),
        lambda t: 1.0,
    ),
}

# The values of the Model Garden's classes of the same names. None marks steps at which this package
# differs on purpose: before an offset, the Model Garden's decays continue backwards, above the
# initial learning rate or down again.
GARDEN: dict[str, list[float | None]] = {
    "piecewise": [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25],
    "polynomial": [None, None, 1.0, 0.980102, 0.360064, 0.01219879, 0.010099, 0.0001],
    "exponential": [None, None, 1.0, 0.98282057, 0.5, 0.21389878, 0.21022411, 0.03716272],
    "cosine": [None, None, 1.0, 0.99977791, 0.68905765, 0.12660365, 0.12202458, 0.1],
    "linear_warmup": [
        *(0.1, 0.14000501, 0.18001001, 0.18801101, 0.50005001, 0.01009899, 0.0001, 0.0001)
    ],
    "polynomial_warmup": [0.0002, 0.005, 0.02, 0.0242, 0.49999997, 0.00024673, 0.0, 0.0],
    "power": [*(1.0, 0.44721359, 0.31622776, 0.30151135, 0.14142136, 0.10050378, 0.1, 0.07071068)],
    "power_linear": [1.0, 1.0, 1.0, 1.0, 0.15811388, 0.05829988, 0.05270463, 0.0],
    "power_offset": [3.0, 3.0, 3.0, 1.0, 0.15811388, 0.10599979, 0.10540926, 0.07254762],
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rate_schedule_follows_its_formula(name: str) -> None:
    schedule, rule = SCHEDULES[name]
    steps = tf.range(250, dtype=tf.int64)
    # As in training, the step is a counter in a graph.
    actual = tf.function(lambda: tf.map_fn(schedule, steps, fn_output_signature=tf.float32))()
    rounding.assert_close(actual, [rule(step) for step in range(250)], roundings=ROUNDINGS)


@pytest.mark.parametrize("name", GARDEN)
def test_learning_rate_schedule_returns_the_values_of_the_model_garden_schedule(name: str) -> None:
    for step, expected in zip(STEPS, GARDEN[name], strict=True):
        if expected is not None:
            actual = SCHEDULES[name][0](step)
            rounding.assert_close(actual, expected, roundings=ROUNDINGS, scale=1.0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_serialized_schedule_is_restored_alone_and_within_an_optimizer(name: str) -> None:
    schedule, _ = SCHEDULES[name]
    optimizer = keras.optimizers.SGD(schedule)
    restored = schedules.deserialize(schedules.serialize(schedule))
    assert type(restored) is type(schedule)
    assert restored.get_config() == schedule.get_config()
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert copy.get_config() == optimizer.get_config()
    for step in STEPS:
        assert float(restored(step)) == float(schedule(step))


@pytest.mark.parametrize(
    ("boundaries", "values"), [([], []), ([0], [1.0, 0.5]), ([5, 5], [1.0, 0.5])]
)
def test_step_cosine_with_invalid_boundaries_is_refused(
    boundaries: list[int], values: list[float]
) -> None:
    with pytest.raises(errors.ConfigValueError):
        lr_schedule.StepCosineDecayWithOffset(boundaries, values)
