"""Histograms over buckets that are fixed beforehand, so that counts from anywhere add up."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

__all__ = ["NUM_BUCKETS", "Histogram", "bucket_counts", "histogram_of"]

# Four buckets between two powers of two: the upper bits of a float32 (exponent, and two bits of
# the fraction) are the number of its bucket, exactly and without a search.
_DROPPED_BITS = 21
_FIRST, _LAST = ((127 - 38) << 2), ((127 + 25) << 2)
_MAGNITUDES = (np.arange(_FIRST, _LAST + 1, dtype=np.int32) << _DROPPED_BITS).view(np.float32)
_EDGES = np.concatenate([-_MAGNITUDES[::-1], _MAGNITUDES]).astype(np.float64)
NUM_BUCKETS = len(_EDGES) - 1


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Histogram:
    """How many values lie in each bucket.

    Attributes:
      edges: `[n + 1]`, rising. The outermost buckets also hold what lies beyond them.
      counts: `[n]`; `counts[i]` is the number of values between `edges[i]` and `edges[i + 1]`.
    """

    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]


def histogram_of(counts: npt.ArrayLike) -> Histogram:
    """The histogram of the `NUM_BUCKETS` counts, without the empty buckets at both ends."""
    counts = np.asarray(counts, np.float64)
    occupied = np.flatnonzero(counts)
    first, last = (occupied[0], occupied[-1] + 1) if occupied.size else (0, 0)
    return Histogram(edges=_EDGES[first : last + 1], counts=counts[first:last])


def bucket_counts(values: Any) -> tf.Tensor:
    """How many of `values` lie in each of the fixed buckets.

    Every bucket of a positive number holds its lower edge, every one of a negative number its
    upper edge; the middle one is what lies within 4e-12 of zero. An infinite value counts as the
    largest there is, NaN not at all.

    Args:
      values: Numbers of any type and shape.

    Returns:
      `[NUM_BUCKETS]`, float32.
    """
    flat = tf.reshape(tf.cast(tf.convert_to_tensor(values), tf.float32), [-1])
    magnitude = tf.bitwise.right_shift(tf.bitcast(tf.abs(flat), tf.int32), _DROPPED_BITS)
    # 0 is the bucket around zero, 1 the first beside it.
    distance = tf.clip_by_value(magnitude - _FIRST + 1, 0, _LAST - _FIRST)
    middle = NUM_BUCKETS // 2
    bucket = tf.where(flat < 0, middle - distance, middle + distance)
    # A negative number belongs to no segment.
    bucket = tf.where(tf.math.is_nan(flat), -1, bucket)
    return tf.math.unsorted_segment_sum(tf.ones_like(flat), bucket, NUM_BUCKETS)
