"""Losses whose subclasses are written for Keras 2."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import user_code

__all__ = ["Loss", "LossFunctionWrapper"]


class Loss(keras.losses.Loss):
    """A `keras.losses.Loss` that calls its subclass as Keras 2 does.

    * `call` gets labels and predictions as they are. Keras 3 would convert integer labels to
      floats.
    * AutoGraph converts `call`, so it may contain an `if` that depends on a tensor.
    * Weights, and the mask of the predictions, may have one dimension less than the losses. They
      then apply to all elements of the last dimension.
    * The reduction `auto` is `sum_over_batch_size`.
    """

    def __init__(self, reduction: str = "auto", name: str | None = None, dtype: Any = None) -> None:
        reduction = "sum_over_batch_size" if reduction == "auto" else reduction
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        losses = tf.convert_to_tensor(user_code.converted(self.call)(y_true, y_pred))
        mask = getattr(y_pred, "_keras_mask", None)
        # AutoGraph, which converts `call`, does not know assignment expressions.
        if mask is not None:
            losses._keras_mask = _expanded(mask, losses)
        weights = None if sample_weight is None else _expanded(sample_weight, losses)
        reduce = _Reduction(self.reduction, name=self.name, dtype=losses.dtype.name)
        return reduce(losses, losses, weights)


class _Reduction(keras.losses.Loss):
    """Reduces the losses that it is given, with the weights and the mask, as Keras does."""

    def __init__(self, reduction: str, name: str, dtype: str) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Return the losses."""
        return y_pred


def _expanded(weights: Any, losses: tf.Tensor) -> tf.Tensor:
    weights = tf.convert_to_tensor(weights)
    is_lower = losses.shape.rank and weights.shape.rank == losses.shape.rank - 1
    return weights[..., tf.newaxis] if is_lower else weights


class LossFunctionWrapper(Loss):
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
        super().__init__(reduction=reduction, name=name)
        self.fn = fn
        self._fn_kwargs = kwargs

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example."""
        labels, predictions = tf.convert_to_tensor(y_true), tf.convert_to_tensor(y_pred)
        return user_code.converted(self.fn)(labels, predictions, **self._fn_kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the config, with the keyword arguments of the function but not the function."""
        return {**super().get_config(), **self._fn_kwargs}
