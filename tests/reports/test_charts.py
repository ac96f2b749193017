import json
import math
import re

from official_lite.reports import charts, markup


def _data(chart: charts.Chart) -> dict:
    found = re.search(r"<script[^>]*>(.*)</script>", charts.figure(chart))
    return json.loads(found[1])


def test_large_series_makes_a_small_figure() -> None:
    points = [(step, math.sin(step / 1e3) / 3) for step in range(100_000)]
    figure = charts.figure(charts.Chart(title="a", series=[charts.Series(name="b", points=points)]))
    assert len(figure) < 30_000
    assert "99999" in figure


def test_value_that_is_not_finite_is_a_hole() -> None:
    points = [(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)]
    chart = charts.Chart(title="a", series=[charts.Series(name="b", points=points)])
    assert _data(chart)["series"][0]["y"] == [1.0, None, None, 2.0]


def test_points_that_have_names_all_stay() -> None:
    points = [(float(n), 0.5) for n in range(3000)]
    named = charts.Series(name="b", points=points, labels=[f"trial {n}" for n in range(3000)])
    assert len(_data(charts.Chart(title="a", series=[named]))["series"][0]["x"]) == 3000


def test_number_is_short_and_keeps_integers() -> None:
    shown = [markup.number(value) for value in (1234567, 2.0, 0.123456789, 1e-9, math.nan, None)]
    assert shown == ["1,234,567", "2", "0.12346", "1e-09", "nan", "–"]


def test_few_values_stay() -> None:
    assert charts.thin([1.0, 2.0, 3.0], max_points=3) == [0, 1, 2]


def test_thinned_curve_keeps_spikes_and_both_ends() -> None:
    values = [math.sin(step) for step in range(100_000)]
    values[54_321], values[54_322] = 1000.0, -1000.0
    kept = charts.thin(values, max_points=800)
    assert len(kept) <= 800
    assert {0, 54_321, 54_322, 99_999} <= set(kept)
    assert kept == sorted(kept)


def test_thinned_curve_keeps_gaps_of_missing_values() -> None:
    assert 700 in charts.thin(
        [None if step == 700 else 1.0 for step in range(1000)], max_points=100
    )


def test_values_that_are_all_missing_leave_their_place() -> None:
    assert len(charts.thin([None] * 1000, max_points=100)) >= 2
