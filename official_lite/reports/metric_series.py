"""Parsing of `metrics.json` into one series per split and metric."""

import dataclasses
import math

from official_lite.common import files

__all__ = ["Series", "parse"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """A metric of one split over the steps of a run.

    If a run was restarted from an earlier checkpoint, only the values reported last are kept for
    the repeated steps.

    Attributes:
        split: `train`, `validation`, …
        name: Name of the metric; nested names are joined by `/`.
        steps: Steps, increasing.
        values: One value per step; NaN for values that were not finite.
        wall_times: When each value was written, in seconds since 1970; None if the file does not
            contain it.
    """

    split: str
    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    wall_times: tuple[float | None, ...]

    @property
    def last(self) -> float:
        """The value at the last step."""
        return self.values[-1]

    def finite(self) -> list[float]:
        """Return the finite values."""
        return [value for value in self.values if math.isfinite(value)]


def parse(text: str) -> tuple[dict[str, dict[str, Series]], list[str]]:
    """Parse the lines of a metrics file.

    Args:
        text: The lines. The last one may be incomplete while the file is being written.

    Returns:
        The series by split and name, and one line of text for each record that could not be read.
    """
    curves: dict[tuple[str, str], _Curve] = {}
    problems: list[str] = []
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            record = _Record.parse(line)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if line.endswith("\n"):
                problems.append(f"line {number} can't be read: {error}")
            continue
        for name, value in record.values.items():
            curve = curves.setdefault((record.split, name), _Curve())
            curve.add(record.step, value, record.wall_time)
    series: dict[str, dict[str, Series]] = {}
    for (split, name), curve in curves.items():
        series.setdefault(split, {})[name] = curve.series(split, name)
    return series, problems


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Record:
    """One line of the file."""

    step: int
    split: str
    wall_time: float | None
    values: dict[str, float]

    @classmethod
    def parse(cls, line: str) -> "_Record":
        values = files.parse_json(line)
        step, split = int(values.pop("step")), str(values.pop("split"))
        wall_time = values.pop("wall_time", None)
        if wall_time is not None and not math.isfinite(wall_time):
            raise ValueError(f"its `wall_time` is {wall_time}")
        numbers = {name: _number(value) for name, value in values.items()}
        return cls(step=step, split=split, wall_time=wall_time, values=numbers)


class _Curve:
    """A series under construction."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float, float | None]] = []

    def add(self, step: int, value: float, wall_time: float | None) -> None:
        """Add a value and drop those at this or later steps, which an earlier start wrote."""
        while self._points and self._points[-1][0] >= step:
            self._points.pop()
        self._points.append((step, value, wall_time))

    def series(self, split: str, name: str) -> Series:
        steps, values, wall_times = zip(*self._points, strict=True)
        return Series(split=split, name=name, steps=steps, values=values, wall_times=wall_times)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
