"""Losses whose subclasses are written for Keras 2."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

__all__ = ["LossFunctionWrapper"]


class LossFunctionWrapper(keras.losses.Loss):
    """A loss that calls a function, as `keras.__internal__.losses` has it in Keras 2.

    Args:
        fn: Function of `y_true`, `y_pred` and the keyword arguments below that returns the loss
            of each example.
        reduction: A reduction of `keras.losses.Loss`, or `auto`, which is `sum_over_batch_size`.
        name: The name of the loss.
        **kwargs: Keyword arguments of `fn`.
    """

    def __init__(
        self,
        fn: Callable[..., tf.Tensor],
        reduction: str = "auto",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        reduction = "sum_over_batch_size" if reduction == "auto" else reduction
        super().__init__(name=name, reduction=reduction)
        self.fn = fn
        self._fn_kwargs = kwargs

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example."""
        return self.fn(y_true, y_pred, **self._fn_kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the config, with the keyword arguments of the function but not the function."""
        return {**super().get_config(), **self._fn_kwargs}
