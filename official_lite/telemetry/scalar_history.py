"""What one scalar has been."""

import collections

import numpy as np

__all__ = ["ScalarHistory"]


class ScalarHistory:
    """The values of one scalar, and statistics of the last of them.

    Args:
      max_length: How many values are kept; the mean over all goes on without the older ones.
    """

    def __init__(self, max_length: int = 4096) -> None:
        self._values: collections.deque[tuple[float, int]] = collections.deque(maxlen=max_length)
        self._total = 0.0
        self._count = 0.0

    def add(self, value: float, step: int, weight: float = 1) -> None:
        """Adds a value at a step, that stands for `weight` values in the mean over all."""
        self._values.append((value, step))
        self._total += value * weight
        self._count += weight

    def latest(self) -> float:
        """The last value."""
        return self._values[-1][0]

    def median(self, window: int = 20) -> float:
        """The median of the last `window` values."""
        return float(np.median(self._last(window)))

    def mean(self, window: int = 20) -> float:
        """The mean of the last `window` values."""
        return float(np.mean(self._last(window)))

    def global_mean(self) -> float:
        """The mean of all numbers that were ever put in, also of those no longer kept.

        What a graph put in within one interval is one value here, its mean, which weighs as much
        as there were numbers in it.
        """
        return self._total / self._count

    def values(self) -> list[tuple[float, int]]:
        """The values that are kept, each with its step, the oldest first."""
        return list(self._values)

    def _last(self, window: int) -> list[float]:
        return [value for value, _ in self.values()[-window:]]
