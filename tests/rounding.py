"""How far two correct computations of the same number may lie apart.

A program that runs twice on one machine must compute the same bits, so tests compare these results
exactly. All other tolerances for rounding come from here. None is tuned to make a test pass.
"""

import math

import ml_dtypes
import numpy as np
import numpy.typing as npt

# The chance that a sum of many roundings exceeds the bound is below 2 * exp(-32).
_STANDARD_DEVIATIONS = 8.0


def unit_roundoff(dtype: str) -> float:
    """Return the largest relative error of rounding a number to `dtype`."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def tolerance(dtype: str = "float32", *, roundings: int = 1) -> float:
    """Return how far two correct results may lie apart, relative to their magnitude.

    The order of a sum depends on the processor: on the width of its vectors, on its number of
    cores, and on the kernel that a library chooses for it. So does each rounding error. Of `n`
    roundings, with a unit roundoff `u`, at most `n * u` accumulates, and almost certainly no more
    than a multiple of `sqrt(n) * u` (Higham and Mary, "A New Approach to Probabilistic Rounding
    Error Analysis", 2019).

    The bound does not hold if training amplifies differences. Compare fewer steps then.

    Args:
        dtype: The least precise data type that a value passes through.
        roundings: The number of roundings one after the other: the terms of the longest sum,
            times the layers or steps that build on one another.
    """
    return _STANDARD_DEVIATIONS * math.sqrt(roundings) * unit_roundoff(dtype)


def assert_close(
    actual: npt.ArrayLike,
    expected: npt.ArrayLike,
    *,
    dtype: str = "float32",
    roundings: int = 1,
    scale: float | None = None,
) -> None:
    """Assert that arrays differ by rounding only, relative to the largest expected element.

    Args:
        actual: The array that is tested.
        expected: The array that it should equal.
        dtype: See `tolerance`.
        roundings: See `tolerance`.
        scale: The magnitude of the terms, where the results are smaller because the terms cancel.
    """
    expected = np.asarray(expected, dtype=np.float64)
    if scale is None:
        scale = float(np.max(np.abs(expected), initial=0.0))
    atol = tolerance(dtype, roundings=roundings) * scale
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=0.0, atol=atol)
