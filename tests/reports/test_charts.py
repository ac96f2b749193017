import json
import math
import re

from official_lite.reports import charts, markup


def _data(chart: charts.Chart) -> dict:
    found = re.search(r"<script[^>]*>(.*)</script>", charts.figure(chart))
    return json.loads(found[1])


def test_non_finite_value_is_a_gap_in_the_curve() -> None:
    points = [(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)]
    chart = charts.Chart(title="a", series=[charts.Series(name="b", points=points)])
    assert _data(chart)["series"][0]["y"] == [1.0, None, None, 2.0]


def test_floats_are_displayed_with_five_digits_and_integers_in_full() -> None:
    shown = [markup.number(value) for value in (1234567, 2.0, 0.123456789, 1e-9, math.nan, None)]
    assert shown == ["1,234,567", "2", "0.12346", "1e-09", "nan", "–"]


def test_long_series_is_thinned_unless_its_points_have_labels() -> None:
    points = [(float(n), 0.5) for n in range(3000)]
    for labels, is_thinned in (((), True), ([f"trial {n}" for n in range(3000)], False)):
        series = charts.Series(name="b", points=points, labels=labels)
        [drawn] = _data(charts.Chart(title="a", series=[series]))["series"]
        assert (len(drawn["x"]) < 1000, drawn["x"][-1]) == (is_thinned, 2999)


def test_thinned_curve_keeps_spikes_gaps_and_both_ends() -> None:
    values = [math.sin(step) for step in range(100_000)]
    values[54_321], values[54_322], values[70_000] = 1000.0, -1000.0, None
    kept = charts.thin(values, max_points=800)
    assert len(kept) <= 801
    assert {0, 54_321, 54_322, 70_000, 99_999} <= set(kept)
    assert kept == sorted(kept)
    assert charts.thin([1.0, 2.0, 3.0], max_points=3) == [0, 1, 2]
    assert len(charts.thin([None] * 1000, max_points=100)) >= 2
