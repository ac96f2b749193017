"""Each schedule against its formula, and against the numbers of the Model Garden's."""

import math
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

SCHEDULES: dict[str, Any] = {
    "piecewise": lr_schedule.PiecewiseConstantDecayWithOffset(
        offset=10, boundaries=[40, 90], values=[1.0, 0.5, 0.25]
    ),
    "polynomial": lr_schedule.PolynomialDecayWithOffset(
        offset=10, initial_learning_rate=1.0, decay_steps=100, power=2.0
    ),
    "exponential": lr_schedule.ExponentialDecayWithOffset(
        offset=10, initial_learning_rate=1.0, decay_steps=40, decay_rate=0.5
    ),
    "cosine": lr_schedule.CosineDecayWithOffset(
        offset=10, initial_learning_rate=1.0, decay_steps=100, alpha=0.1
    ),
    "linear_warmup": lr_schedule.LinearWarmup(POLYNOMIAL, 50, 0.1),
    "polynomial_warmup": lr_schedule.PolynomialWarmUp(COSINE, 50, 2.0),
    "constant_warmup": lr_schedule.LinearWarmup(0.5, 10, 0.0),
    "power": lr_schedule.DirectPowerDecay(1.0, -0.5),
    "power_linear": lr_schedule.PowerAndLinearDecay(1.0, 100, -0.5, 0.2, offset=10),
    "power_offset": lr_schedule.PowerDecayWithOffset(1.0, -0.5, 10, 3.0),
    "step_cosine": lr_schedule.StepCosineDecayWithOffset([0, 50, 150], [1.0, 0.5, 0.25]),
}


def _half_cosine(progress: float) -> float:
    return (math.cos(math.pi * min(max(progress, 0.0), 1.0)) + 1.0) / 2.0


def _polynomial(step: int) -> float:
    return (1.0 - 1e-4) * (1.0 - min(step, 100) / 100) + 1e-4


FORMULAS = {
    "piecewise": lambda t: 1.0 if t <= 50 else 0.5 if t <= 100 else 0.25,
    "polynomial": lambda t: (1 - 1e-4) * (1 - min(max(t - 10, 0), 100) / 100) ** 2 + 1e-4,
    "exponential": lambda t: 0.5 ** (max(t - 10, 0) / 40),
    "cosine": lambda t: 0.9 * _half_cosine((t - 10) / 100) + 0.1,
    "linear_warmup": lambda t: 0.1 + t / 50 * (_polynomial(50) - 0.1) if t < 50 else _polynomial(t),
    "polynomial_warmup": lambda t: 0.5 * (max(t, 1) / 50) ** 2 if t < 50 else _half_cosine(t / 100),
    "constant_warmup": lambda t: min(t / 10, 1.0) * 0.5,
    "power": lambda t: max(t, 1) ** -0.5,
    "power_linear": lambda t: max(t - 10, 1) ** -0.5 * min(max((110 - t) / 20, 0.0), 1.0),
    "power_offset": lambda t: min((t - 10) ** -0.5, 3.0) if t > 10 else 3.0,
    "step_cosine": lambda t: (
        0.5 * _half_cosine(t / 50) + 0.5 if t < 50 else 0.25 * _half_cosine((t - 50) / 100) + 0.25
    ),
}

# Of the Model Garden's classes of the same names; None where it differs on purpose: before an
# offset its decays go on backwards, above the initial learning rate or down again.
GOLDEN: dict[str, list[float | None]] = {
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


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_follows_its_formula(name: str) -> None:
    actual = [float(SCHEDULES[name](step)) for step in range(250)]
    expected = [FORMULAS[name](step) for step in range(250)]
    rounding.assert_close(actual, expected, roundings=ROUNDINGS)


@pytest.mark.parametrize("name", GOLDEN)
def test_schedule_has_the_numbers_of_the_model_garden(name: str) -> None:
    for step, expected in zip(STEPS, GOLDEN[name], strict=True):
        if expected is not None:
            rounding.assert_close(SCHEDULES[name](step), expected, roundings=ROUNDINGS, scale=1.0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_survives_serialization(name: str) -> None:
    restored = schedules.deserialize(schedules.serialize(SCHEDULES[name]))
    assert type(restored) is type(SCHEDULES[name])
    assert restored.get_config() == SCHEDULES[name].get_config()
    for step in STEPS:
        assert float(restored(step)) == float(SCHEDULES[name](step))


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_gives_the_same_in_a_graph_for_an_iteration_counter(name: str) -> None:
    counter = keras.Variable(50, dtype="int64")
    traced = tf.function(lambda: SCHEDULES[name](counter))
    rounding.assert_close(traced(), SCHEDULES[name](50), roundings=ROUNDINGS)


@pytest.mark.parametrize("values", [[1.0], [1.0, 0.5], [0.1, 1.0, 0.0]])
def test_step_cosine_is_finite_and_stays_at_its_last_value(values: list[float]) -> None:
    boundaries = [0, 50, 100][: len(values)]
    schedule = lr_schedule.StepCosineDecayWithOffset(boundaries, values, offset=7)
    steps, expected = [0, *(b + 7 for b in boundaries), 10_000], [values[0], *values, values[-1]]
    rounding.assert_close([schedule(step) for step in steps], expected, roundings=ROUNDINGS)


def test_step_cosine_before_its_first_boundary_waits() -> None:
    schedule = lr_schedule.StepCosineDecayWithOffset([100, 200], [1.0, 0.5])
    assert [float(schedule(t)) for t in (0, 100, 150, 200)] == pytest.approx([1, 1, 0.75, 0.5])


@pytest.mark.parametrize(
    ("boundaries", "values"), [([], []), ([0], [1.0, 0.5]), ([5, 5], [1.0, 0.5])]
)
def test_step_cosine_refuses_impossible_corners(boundaries: list[int], values: list[float]) -> None:
    with pytest.raises(errors.ConfigValueError):
        lr_schedule.StepCosineDecayWithOffset(boundaries, values)


@pytest.mark.parametrize("step", [0, 1, 5])
def test_warmup_of_no_steps_is_none(step: int) -> None:
    linear = lr_schedule.LinearWarmup(POLYNOMIAL, 0, 0.0)
    polynomial = lr_schedule.PolynomialWarmUp(POLYNOMIAL, 0)
    assert float(linear(step)) == float(polynomial(step)) == float(POLYNOMIAL(step))


def test_optimizer_with_a_warmup_survives_serialization() -> None:
    optimizer = keras.optimizers.SGD(SCHEDULES["linear_warmup"])
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert restored.get_config() == optimizer.get_config()


def test_power_decay_never_exceeds_the_rate_before_its_offset() -> None:
    schedule = lr_schedule.PowerDecayWithOffset(1.0, -0.5, 10, pre_offset_learning_rate=0.5)
    rates = [float(schedule(step)) for step in (10, 11, 14, 26)]
    rounding.assert_close(rates, [0.5, 0.5, 0.5, 0.25], roundings=ROUNDINGS)
