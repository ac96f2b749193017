"""Histograms with fixed buckets, so that counts from different sources can be added."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

__all__ = ["NUM_BUCKETS", "Histogram", "bucket_counts", "histogram_of"]

# There are four buckets between two powers of two: the upper bits of a float32 (the exponent and
# two bits of the fraction) are the index of its bucket, exactly and without a search.
_DROPPED_BITS = 21
_FIRST, _LAST = ((127 - 38) << 2), ((127 + 25) << 2)
_MAGNITUDES = (np.arange(_FIRST, _LAST + 1, dtype=np.int32) << _DROPPED_BITS).view(np.float32)
_EDGES = np.concatenate([-_MAGNITUDES[::-1], _MAGNITUDES]).astype(np.float64)
NUM_BUCKETS = len(_EDGES) - 1


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Histogram:
    """The number of values in each bucket.

    Attributes:
      edges: `[n + 1]`, increasing. The outermost buckets also hold the values beyond them.
      counts: `[n]`; `counts[i]` is the number of values between `edges[i]` and `edges[i + 1]`.
    """

    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]


def histogram_of(counts: npt.ArrayLike) -> Histogram:
    """Build a `Histogram` from `NUM_BUCKETS` counts, trimming the empty buckets at both ends."""
    counts = np.asarray(counts, np.float64)
    occupied = np.flatnonzero(counts)
    first, last = (occupied[0], occupied[-1] + 1) if occupied.size else (0, 0)
    return Histogram(edges=_EDGES[first : last + 1], counts=counts[first:last])


def bucket_counts(values: Any) -> tf.Tensor:
    """Return how many of `values` lie in each of the fixed buckets.

    A bucket of positive numbers includes its lower edge, and a bucket of negative numbers its upper
    edge. The middle bucket holds the values within 4e-12 of zero. An infinite value counts as the
    largest finite value; NaN is not counted.

    Args:
      values: Numbers of any type and shape.

    Returns:
      `[NUM_BUCKETS]`, float32.
    """
    flat = tf.reshape(tf.cast(tf.convert_to_tensor(values), tf.float32), [-1])
    magnitude = tf.bitwise.right_shift(tf.bitcast(tf.abs(flat), tf.int32), _DROPPED_BITS)
    # The distance is 0 for the bucket around zero and 1 for its neighbors.
    distance = tf.clip_by_value(magnitude - _FIRST + 1, 0, _LAST - _FIRST)
    middle = NUM_BUCKETS // 2
    bucket = tf.where(flat < 0, middle - distance, middle + distance)
    # `unsorted_segment_sum` ignores negative segment IDs.
    bucket = tf.where(tf.math.is_nan(flat), -1, bucket)
    return tf.math.unsorted_segment_sum(tf.ones_like(flat), bucket, NUM_BUCKETS)
