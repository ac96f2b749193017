import math

import numpy as np
import pytest

from official_lite import telemetry

VALUES = np.random.default_rng(0).normal(size=100)


@pytest.fixture
def history():
    history = telemetry.ScalarHistory()
    for step, value in enumerate(VALUES):
        history.add(value, step)
    return history


@pytest.mark.parametrize("window", [1, 20, 1000])
def test_statistics_equal_numpy(history, window):
    assert history.median(window) == np.median(VALUES[-window:])
    assert history.mean(window) == pytest.approx(np.mean(VALUES[-window:]))


def test_latest_is_the_last(history):
    assert history.latest() == VALUES[-1]
    assert history.values()[-1] == (VALUES[-1], 99)


def test_old_values_are_dropped_but_count_in_the_mean_over_all():
    history = telemetry.ScalarHistory(max_length=10)
    for step, value in enumerate(VALUES):
        history.add(value, step)
    assert history.values() == [(VALUES[i], i) for i in range(90, 100)]
    assert history.global_mean() == pytest.approx(VALUES.mean())


def test_weights_count_in_the_mean_over_all():
    history = telemetry.ScalarHistory()
    history.add(1.0, 1, weight=3)
    history.add(5.0, 2)
    assert history.global_mean() == 2.0


def test_nan_shows():
    history = telemetry.ScalarHistory()
    for value in (1.0, math.nan):
        history.add(value, 1)
    for number in (history.latest(), history.median(), history.mean(), history.global_mean()):
        assert math.isnan(number)
