"""Losses and metrics with the behavior of Keras 2, and functions that add them to a model."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from official_lite.common import user_code

if TYPE_CHECKING:
    from keras.metrics import IoU as _MetricHalf
else:
    _MetricHalf = object

_GRAPH = ("_nodes", "_nodes_by_depth", "_operations", "_operations_by_depth")


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
        # AutoGraph does not support `:=`, so do not use it here.
        if mask is not None:
            losses._keras_mask = _expanded(mask, losses)
        weights = None if sample_weight is None else _expanded(sample_weight, losses)
        reduce = _Reduction(self.reduction, name=self.name, dtype=losses.dtype.name)
        return reduce(losses, losses, weights)


class _Reduction(keras.losses.Loss):
    """A loss that applies Keras' weights, mask and reduction to precomputed losses."""

    def __init__(self, reduction: str, name: str, dtype: str) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Return the losses, which are passed as the predictions."""
        return y_pred


def _expanded(weights: Any, losses: tf.Tensor) -> tf.Tensor:
    weights = tf.convert_to_tensor(weights)
    is_lower = losses.shape.rank and weights.shape.rank == losses.shape.rank - 1
    return weights[..., tf.newaxis] if is_lower else weights


class LossFunctionWrapper(Loss):
    """A loss that calls a function, like the one in `keras.__internal__.losses` of Keras 2.

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


class _CountsInFloats(_MetricHalf):
    """Mixin with a default dtype of float32: an integer dtype would truncate fractional weights."""

    def __init__(self, *args: Any, dtype: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, dtype=dtype or "float32", **kwargs)


class BinaryIoU(_CountsInFloats, keras.metrics.BinaryIoU):
    """A `keras.metrics.BinaryIoU` that supports fractional weights."""


class IoU(_CountsInFloats, keras.metrics.IoU):
    """A `keras.metrics.IoU` that supports fractional weights."""


class MeanIoU(_CountsInFloats, keras.metrics.MeanIoU):
    """A `keras.metrics.MeanIoU` that supports fractional weights."""


class OneHotIoU(_CountsInFloats, keras.metrics.OneHotIoU):
    """A `keras.metrics.OneHotIoU` that supports fractional weights."""


class OneHotMeanIoU(_CountsInFloats, keras.metrics.OneHotMeanIoU):
    """A `keras.metrics.OneHotMeanIoU` that supports fractional weights."""


class _Endpoint(keras.layers.Layer):
    """Base class of layers that return their input and add it to the losses or metrics."""

    def __init__(self, **kwargs: Any) -> None:
        # Disable autocasting, which would round a loss in float32 under mixed precision.
        super().__init__(autocast=False, **kwargs)

    def compute_output_spec(self, value: keras.KerasTensor) -> keras.KerasTensor:
        """Return a dense symbolic tensor, because Keras wrongly marks `2 * x` as sparse."""
        return keras.KerasTensor(value.shape, value.dtype)


class _LossEndpoint(_Endpoint):
    """A layer that adds its input to the model's losses and returns the input."""

    def call(self, value: Any) -> Any:
        """Add the value to the model's losses."""
        self.add_loss(value)
        return value


class _MetricEndpoint(_Endpoint):
    """A layer that updates a mean metric of the model with its input and returns the input."""

    def __init__(self, metric_name: str) -> None:
        super().__init__(name=metric_name)
        self.metric = keras.metrics.Mean(metric_name)

    def call(self, value: Any) -> Any:
        """Update the mean metric with the value."""
        self.metric.update_state(value)
        return value


def add_loss(model: keras.Model, losses: Any) -> None:
    """Add losses to a functional model, like `model.add_loss` of Keras 2.

    Args:
        model: The model.
        losses: Symbolic tensors that are computed from the inputs of the model.
    """
    for loss in keras.tree.flatten(losses):
        _add_to_graph(model, _LossEndpoint(), loss)


def add_metric(
    model: keras.Model, value: Any, name: str | None = None, aggregation: str | None = "mean"
) -> None:
    """Add the mean of a value to the metrics of a functional model, like `model.add_metric`.

    Args:
        model: The model.
        value: A symbolic tensor that is computed from the inputs of the model.
        name: The name of the metric.
        aggregation: Ignored. With a tensor, Keras 2 supports only the mean.
    """
    del aggregation
    _add_to_graph(model, _MetricEndpoint(name or "metric"), value)


def _add_to_graph(model: keras.Model, endpoint: keras.Layer, value: Any) -> None:
    """Make a model call `endpoint` on `value`, although no output depends on the result."""
    graph = keras.Function(model.inputs, [*_ends(model), endpoint(value)])
    known = {id(layer) for layer in model.layers}
    for name in _GRAPH:
        # Bypass `__setattr__`, which would track the layers as attributes of the model.
        model.__dict__[name] = getattr(graph, name)
    for layer in model.layers:
        if id(layer) not in known:
            model._tracker.track(layer)


def _ends(model: keras.Model) -> list[Any]:
    """Return the outputs of a model and of its endpoint layers."""
    endpoints = [one for one in model.layers if isinstance(one, _Endpoint)]
    return [*model.outputs, *(one.output for one in endpoints)]
