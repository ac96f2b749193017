"""Records, which writers receive, and the histograms in them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import nested_dict, terminal

__all__ = [
    "NUM_BUCKETS",
    "Histogram",
    "bucket_counts",
    "histogram_of",
    "Record",
    "numbers",
    "as_number",
    "warn_left_out",
]


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


def bucket_counts(values: tf.Tensor | npt.NDArray[Any]) -> tf.Tensor:
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


Values: TypeAlias = Mapping[str, "int | float | Values"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """The values of one report.

    Attributes:
      step: The global step at which the values were read.
      split: What the values were measured on: `"train"`, `"validation"`, …
      values: Python numbers by name. A nested mapping groups related values, such as the metrics of
        one of several data sets.
      images: Images by name: `[height, width, channels]`, uint8. Text writers ignore them.
      histograms: Histograms by name. Text writers ignore them.
      total_steps: The step at which training ends, if this is a training report.
    """

    step: int
    split: str
    values: Values
    images: Mapping[str, npt.NDArray[np.uint8]] = dataclasses.field(default_factory=dict)
    histograms: Mapping[str, Histogram] = dataclasses.field(default_factory=dict)
    total_steps: int | None = None

    @property
    def eta_seconds(self) -> float | None:
        """The remaining training time at the rate of this report, in seconds.

        It is `None` without `total_steps` or without `steps_per_second` among the values.
        """
        rate = self.values.get("steps_per_second")
        if self.total_steps is None or not isinstance(rate, int | float) or rate <= 0:
            return None
        return max(self.total_steps - self.step, 0) / rate

    def flat(self) -> dict[str, int | float]:
        """Return the values with nested names joined by `/`."""
        return nested_dict.flatten_nested_dict(self.values, "/")


def numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalars in `logs` as Python numbers, with the same nesting.

    Accepts Python and NumPy values. Values that are not single numbers (an image, a string, a
    confusion matrix) are skipped, with one warning per name.
    """
    kept: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            kept[name] = numbers(value)
        elif (number := as_number(value)) is not None:
            kept[name] = number
        else:
            warn_left_out(name, value)
    return kept


def as_number(value: object) -> int | float | None:
    """Return a Python or NumPy value as a number, or `None` if it is not a single number."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind in "OSUMmc":
        return None
    # bfloat16 and similar types are of kind "V" or "f"; all of them convert to a Python float.
    return int(array.item()) if array.dtype.kind in "biu" else float(array.reshape(()))


def warn_left_out(name: str, value: Any) -> None:
    """Warn once that a value is not written, and say how to report its elements."""
    shape = np.shape(value)
    terminal.warn_once(
        "`%s` %s and is not a single number: the writers leave it out. A metric can report one "
        "entry per element: return a dictionary of numbers from `result`, such as "
        "`{'%s/0': values[0]}`, or average the elements.",
        name,
        f"has the shape {shape}" if shape else f"is a {type(value).__name__}",
        name,
    )
