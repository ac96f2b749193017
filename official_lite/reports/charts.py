"""Charts: the data that the script of the page draws as SVG."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from official_lite.reports.markup import Child, Markup, json_script, tag

__all__ = ["thin", "Chart", "Look", "Series", "figure", "foldable_grid", "grid", "swatch"]

Look: TypeAlias = Literal["solid", "dashed", "dots", "rings", "steps"]
"""A line, a less prominent (dashed) line, points, less prominent points, or a step function."""

_SIGNIFICANT_DIGITS = 6
# A grid with more charts than this is initially collapsed.
_MAX_OPEN_CHARTS = 6


def thin(values: Sequence[float | None], *, max_points: int = 800) -> list[int]:
    """Return the indices of the values to keep: the minimum and maximum of each segment.

    Single-step spikes are therefore preserved. The first and the last value are kept, and so is one
    missing value of each segment that has any.

    Args:
        values: The values in order; None for values that are not finite.
        max_points: Approximate number of points to keep; up to 50% more if values are missing.

    Returns:
        Increasing indices.
    """
    if len(values) <= max_points:
        return list(range(len(values)))
    # Keep two points of each segment, as well as the first and the last point.
    num_stretches = max(1, max_points // 2 - 1)
    length = (len(values) - 2) / num_stretches
    kept = [0]
    for number in range(num_stretches):
        start, end = (1 + math.floor(n * length) for n in (number, number + 1))
        kept.extend(_extremes(values, range(start, end)))
    return [*kept, len(values) - 1]


def _extremes(values: Sequence[float | None], stretch: range) -> Iterator[int]:
    finite = [(value, index) for index in stretch if (value := values[index]) is not None]
    missing = [index for index in stretch if values[index] is None]
    ends = [min(finite)[1], max(finite)[1]] if finite else []
    yield from sorted({*ends, *missing[:1]})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """One series of a chart.

    Attributes:
        name: Name in the legend and next to the value under the pointer.
        points: Sorted x values with their y values; None for a y value that is not finite.
        minutes: Time of each point in minutes, for a chart that can be drawn over time; empty if
            unknown.
        colour: Index in the page's palette. After the last color the palette starts again, with
            other point markers.
        look: How the series is drawn.
        run: Index of the run whose switch hides the series; None if there is none.
        split: Split whose switch hides the series: `train` or `validation`; empty if there is none.
        labels: A label for each point, if its position does not identify it.
        group: Name in the legend, which shows and hides all series of a group together. Defaults
            to the name.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    minutes: Sequence[float] = ()
    colour: int = 0
    look: Look = "solid"
    run: int | None = None
    split: str = ""
    labels: Sequence[str] = ()
    group: str = ""

    @property
    def legend(self) -> str:
        """The name in the legend."""
        return self.group or self.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with one pair of axes.

    Attributes:
        title: Title above the chart.
        series: The series to draw.
        x_label: Label of the x axis.
        y_label: What the values are, in the description for screen readers and in tooltips.
            Defaults to the title.
        x_names: Names of the positions 0, 1, … on an x axis without numbers.
        x_is_log: Whether the x axis is logarithmic.
        y_range: The range that the y axis must include. By default it follows the values.
        is_smoothed: Whether the page's smoothing applies to the chart.
    """

    title: str
    series: Sequence[Series]
    x_label: str = "step"
    y_label: str = ""
    x_names: Sequence[str] = ()
    x_is_log: bool = False
    y_range: tuple[float, float] | None = None
    is_smoothed: bool = False


def figure(chart: Chart) -> Markup:
    """Build the HTML element of a chart and its legend; the page's script draws the chart."""
    return tag(
        "figure",
        tag("figcaption", tag("span", chart.title, class_="title")),
        tag("div", class_="plot"),
        _legend(chart.series),
        json_script(_data(chart)),
        class_="chart",
    )


def grid(charts: Sequence[Chart]) -> Markup:
    """Build a grid of charts, with as many side by side as fit."""
    return tag("div", map(figure, charts), class_="charts")


def foldable_grid(charts: Sequence[Chart], kind: str = "charts") -> Markup:
    """Build a grid that is collapsed at first if it has many charts; `kind` names them."""
    shown = grid(charts)
    if len(charts) <= _MAX_OPEN_CHARTS:
        return shown
    return tag("details", tag("summary", f"{len(charts)} {kind}"), shown)


def _legend(series: Sequence[Series]) -> Child:
    # The last series of a group is drawn in front, so its swatch represents the group.
    groups = {one.legend: one for one in series}
    return tag(
        "ul",
        [
            tag("li", tag("button", swatch(one), name, type="button", aria_pressed="true"))
            for name, one in groups.items()
        ],
        class_="legend",
    )


def swatch(series: Series) -> Markup:
    """Build a sample of the series' color and look."""
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
    # A series with labels is never thinned: each of its points must be able to show its label.
    kept = range(len(values)) if series.labels else thin(values)
    return {
        "name": series.name,
        "legend": series.legend,
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
    """Round a number to the digits that a chart can show; return integers unchanged."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
