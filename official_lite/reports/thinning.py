"""Reduction of a curve to fewer points that look the same."""

import math
from collections.abc import Iterator, Sequence

__all__ = ["thin"]


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
    # Two points per segment, plus both ends.
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
