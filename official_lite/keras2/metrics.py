"""Metrics whose default dtype differs between Keras 2 and Keras 3."""

from typing import TYPE_CHECKING, Any

import keras

__all__ = ["BinaryIoU", "IoU", "MeanIoU", "OneHotIoU", "OneHotMeanIoU"]


if TYPE_CHECKING:
    from keras.metrics import IoU as _MetricHalf
else:
    _MetricHalf = object


class _CountsInFloats(_MetricHalf):
    """Mixin for a default dtype of float32: with integers, weights below 1 count as 0."""

    def __init__(self, *args: Any, dtype: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, dtype=dtype or "float32", **kwargs)


class BinaryIoU(_CountsInFloats, keras.metrics.BinaryIoU):
    """A `keras.metrics.BinaryIoU` with weights of any size."""


class IoU(_CountsInFloats, keras.metrics.IoU):
    """A `keras.metrics.IoU` with weights of any size."""


class MeanIoU(_CountsInFloats, keras.metrics.MeanIoU):
    """A `keras.metrics.MeanIoU` with weights of any size."""


class OneHotIoU(_CountsInFloats, keras.metrics.OneHotIoU):
    """A `keras.metrics.OneHotIoU` with weights of any size."""


class OneHotMeanIoU(_CountsInFloats, keras.metrics.OneHotMeanIoU):
    """A `keras.metrics.OneHotMeanIoU` with weights of any size."""
