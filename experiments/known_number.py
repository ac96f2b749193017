"""A metric that reports a known number next to the measured ones."""

from typing import Any

import keras
import tensorflow as tf

__all__ = ["KnownNumber"]


class KnownNumber(keras.metrics.Metric):
    """A metric whose value is known before the evaluation, such as the best possible value.

    Args:
        number: The value to report.
        name: The name under which the value is reported.
    """

    def __init__(self, number: float, name: str) -> None:
        super().__init__(name=name)
        self._number = number

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Do nothing."""
        del y_true, y_pred, sample_weight

    def result(self) -> tf.Tensor:
        """Return the number."""
        return tf.constant(self._number, tf.float32)
