"""Parsing of `metrics.json` into one series per split and metric."""

import dataclasses
import math
from collections.abc import Iterable

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


def parse(lines: Iterable[str]) -> tuple[dict[str, dict[str, Series]], list[str]]:
    """Parse the lines of a metrics file.

    Args:
        lines: The lines with their line breaks, such as an open file. The last one may be
            incomplete while the file is being written.

    Returns:
        The series by split and name, and one line of text for each record that could not be read.
    """
    curves: dict[tuple[str, str], _Curve] = {}
    problems: list[str] = []
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
        # A tuple per point would take twice the memory.
        self._steps: list[int] = []
        self._values: list[float] = []
        self._wall_times: list[float | None] = []

    def add(self, step: int, value: float, wall_time: float | None) -> None:
        """Add a value and drop those at this or later steps, which an earlier start wrote."""
        while self._steps and self._steps[-1] >= step:
            for column in (self._steps, self._values, self._wall_times):
                column.pop()
        self._steps.append(step)
        self._values.append(value)
        self._wall_times.append(wall_time)

    def series(self, split: str, name: str) -> Series:
        return Series(
            split=split,
            name=name,
            steps=tuple(self._steps),
            values=tuple(self._values),
            wall_times=tuple(self._wall_times),
        )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
