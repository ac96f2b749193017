import math

from official_lite.reports.charts import thin


def test_few_values_stay() -> None:
    assert thin([1.0, 2.0, 3.0], max_points=3) == [0, 1, 2]


def test_thinned_curve_keeps_spikes_and_both_ends() -> None:
    values = [math.sin(step) for step in range(100_000)]
    values[54_321], values[54_322] = 1000.0, -1000.0
    kept = thin(values, max_points=800)
    assert len(kept) <= 800
    assert {0, 54_321, 54_322, 99_999} <= set(kept)
    assert kept == sorted(kept)


def test_thinned_curve_keeps_gaps_of_missing_values() -> None:
    assert 700 in thin([None if step == 700 else 1.0 for step in range(1000)], max_points=100)


def test_values_that_are_all_missing_leave_their_place() -> None:
    assert len(thin([None] * 1000, max_points=100)) >= 2
