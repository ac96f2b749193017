"""The history of one scalar."""

import collections

import numpy as np

__all__ = ["ScalarHistory"]


class ScalarHistory:
    """The values of one scalar, with statistics of the most recent ones.

    Args:
      max_length: Maximum number of values to keep. `global_mean` still includes discarded values.
    """

    def __init__(self, max_length: int = 4096) -> None:
        self._values: collections.deque[tuple[float, int]] = collections.deque(maxlen=max_length)
        self._total = 0.0
        self._count = 0.0

    def add(self, value: float, step: int, weight: float = 1) -> None:
        """Add a value recorded at `step`, with `weight` as its weight in `global_mean`."""
        self._values.append((value, step))
        self._total += value * weight
        self._count += weight

    def latest(self) -> float:
        """Return the latest value."""
        return self._values[-1][0]

    def median(self, window: int = 20) -> float:
        """Return the median of the last `window` values."""
        return float(np.median(self._last(window)))

    def mean(self, window: int = 20) -> float:
        """Return the mean of the last `window` values."""
        return float(np.mean(self._last(window)))

    def global_mean(self) -> float:
        """Return the mean of all values ever added, including those no longer kept.

        Values recorded inside a graph during one interval are stored as one value, their mean,
        which is weighted by the number of values recorded.
        """
        return self._total / self._count

    def values(self) -> list[tuple[float, int]]:
        """Return the kept values with their steps, oldest first."""
        return list(self._values)

    def _last(self, window: int) -> list[float]:
        return [value for value, _ in self.values()[-window:]]
