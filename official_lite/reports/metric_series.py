"""The metrics of a run as curves, from the lines of its `metrics.json`."""

import dataclasses
import json
import math
from typing import Any

__all__ = ["Series", "parse"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """A metric of a split over the steps of a run.

    What a run has reported after a checkpoint that it was then started from again counts once: as
    it was reported last.

    Attributes:
        split: `train`, `validation`, …
        name: Its name; nested ones are joined by `/`.
        steps: Rising.
        values: One for each step; NaN for what was not finite.
        wall_times: When each was written, in seconds since 1970; None if the file does not say.
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
        """The values that are numbers."""
        return [value for value in self.values if math.isfinite(value)]


def parse(text: str) -> tuple[dict[str, dict[str, Series]], list[str]]:
    """The series by split and name, and what could not be read, a line each.

    Args:
        text: The lines; the last one may be about to be written.
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
    """A line."""

    step: int
    split: str
    wall_time: float | None
    values: dict[str, float]

    @classmethod
    def parse(cls, line: str) -> "_Record":
        values: dict[str, Any] = dict(json.loads(line))
        step, split = int(values.pop("step")), str(values.pop("split"))
        wall_time = values.pop("wall_time", None)
        numbers = {name: _number(value) for name, value in values.items()}
        return cls(step=step, split=split, wall_time=wall_time, values=numbers)


class _Curve:
    """A series while it is read."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float, float | None]] = []

    def add(self, step: int, value: float, wall_time: float | None) -> None:
        """Adds a value; those at this step and after it are of an earlier start, and go."""
        while self._points and self._points[-1][0] >= step:
            self._points.pop()
        self._points.append((step, value, wall_time))

    def series(self, split: str, name: str) -> Series:
        steps, values, wall_times = zip(*self._points, strict=True)
        return Series(split=split, name=name, steps=steps, values=values, wall_times=wall_times)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
