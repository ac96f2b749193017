"""Charts: what is to be drawn, for the script of the page, which draws it as SVG."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from official_lite.reports import thinning
from official_lite.reports.markup import Child, Markup, json_script, tag

__all__ = ["Chart", "Look", "Series", "figure", "grid", "number", "swatch"]

Look: TypeAlias = Literal["solid", "dashed", "dots", "rings", "steps"]
"""A line, one that stands back behind others, points, points that stand back, a staircase."""

_SIGNIFICANT_DIGITS = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """What belongs together in a chart.

    Attributes:
        name: For the legend, and beside the value under the pointer.
        points: Where, sorted, and what; None for what is not a finite number.
        minutes: When each of them was, for a chart that can be drawn over time; none if not known.
        colour: Its number in the page's palette; after the last colour the first comes again, with
            other signs for its points.
        look: How it is drawn.
        run: The number of the run whose switch hides it; None if there is none.
        split: Likewise, `train` or `validation`.
        labels: What each point is, if its place does not say it.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    minutes: Sequence[float] = ()
    colour: int = 0
    look: Look = "solid"
    run: int | None = None
    split: str = ""
    labels: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with one pair of axes.

    Attributes:
        title: Above it.
        series: What is in it.
        x_label: Below it.
        y_label: What the values are, for those who can't see it; by default as the title.
        x_names: Names of the places 0, 1, … on an axis that has no numbers.
        x_is_log: Whether that axis is logarithmic.
        y_range: What the axis has to show; by default what the values need.
        is_smoothed: Whether the page's smoothing is for it.
        has_legend: Whether it needs a legend of its own.
    """

    title: str
    series: Sequence[Series]
    x_label: str = "step"
    y_label: str = ""
    x_names: Sequence[str] = ()
    x_is_log: bool = False
    y_range: tuple[float, float] | None = None
    is_smoothed: bool = False
    has_legend: bool = True


def figure(chart: Chart) -> Markup:
    """The chart and its legend, of which the script makes the rest."""
    return tag(
        "figure",
        tag("figcaption", tag("span", chart.title, class_="title")),
        tag("div", class_="plot"),
        _legend(chart.series) if chart.has_legend else None,
        json_script(_data(chart)),
        class_="chart",
    )


def grid(charts: Sequence[Chart]) -> Markup:
    """Charts beside one another, as many as there is room for."""
    return tag("div", map(figure, charts), class_="charts")


def number(value: float | None) -> str:
    """A number for people."""
    if value is None or not math.isfinite(value):
        return "–" if value is None else str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.5g}"


def _legend(series: Sequence[Series]) -> Child:
    return tag(
        "ul",
        [
            tag(
                "li",
                tag("button", swatch(one), one.name, type="button", aria_pressed="true"),
            )
            for one in series
        ],
        class_="legend",
    )


def swatch(series: Series) -> Markup:
    """A sign of the series' colour and look."""
    return tag("span", class_=f"swatch {series.look} c{series.colour % 8}", aria_hidden="true")


def _data(chart: Chart) -> dict[str, Any]:
    return {
        "title": chart.title,
        "xLabel": chart.x_label,
        "yLabel": chart.y_label or chart.title,
        "xNames": list(chart.x_names),
        "xLog": chart.x_is_log,
        "yRange": chart.y_range,
        "smooth": chart.is_smoothed,
        "series": [_series_data(one) for one in chart.series],
    }


def _series_data(series: Series) -> dict[str, Any]:
    values = [_finite(y) for _, y in series.points]
    # What has labels is a set of points, each of which can be asked for its name.
    kept = range(len(values)) if series.labels else thinning.thin(values)
    return {
        "name": series.name,
        "colour": series.colour,
        "look": series.look,
        "run": series.run,
        "split": series.split,
        "labels": list(series.labels),
        "x": [_rounded(series.points[index][0]) for index in kept],
        "y": [_rounded(values[index]) for index in kept],
        "minutes": [_rounded(series.minutes[index]) for index in kept if series.minutes],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _rounded(value: float | None) -> float | None:
    """As many digits as can be seen, and no more; integers stay what they are."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
