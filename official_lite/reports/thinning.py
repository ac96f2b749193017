"""Fewer points that look the same."""

import math
from collections.abc import Iterator, Sequence

__all__ = ["thin"]


def thin(values: Sequence[float | None], *, max_points: int = 800) -> list[int]:
    """Which of the values to keep: the least and the greatest of each of a number of stretches.

    So a spike of a single step stays. The first value and the last one stay, and so does one of a
    stretch that is missing.

    Args:
        values: In their order; None for one that is not a finite number.
        max_points: About how many to keep: up to half as many again, if some are missing.

    Returns:
        Rising indices.
    """
    if len(values) <= max_points:
        return list(range(len(values)))
    # Two of a stretch, and both ends.
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
