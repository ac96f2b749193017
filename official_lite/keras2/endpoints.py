"""Losses and metrics of a functional model that are functions of its symbolic tensors."""

from typing import Any

import keras

__all__ = ["add_loss", "add_metric"]

_GRAPH = ("_nodes", "_nodes_by_depth", "_operations", "_operations_by_depth")


class _Endpoint(keras.layers.Layer):
    """Returns its input."""

    def compute_output_spec(self, value: keras.KerasTensor) -> keras.KerasTensor:
        """Return a dense tensor like the input: Keras takes `2 * x` for sparse."""
        return keras.KerasTensor(value.shape, value.dtype)


class _LossEndpoint(_Endpoint):
    """Adds its input to the losses of the model, and returns it."""

    def call(self, value: Any) -> Any:
        """Add the value to the losses."""
        self.add_loss(value)
        return value


class _MetricEndpoint(_Endpoint):
    """Adds its input to a mean that the model reports, and returns it."""

    def __init__(self, metric_name: str) -> None:
        super().__init__(name=metric_name)
        self.metric = keras.metrics.Mean(metric_name)

    def call(self, value: Any) -> Any:
        """Update the mean."""
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
    """Make the model call a layer that no output depends on."""
    graph = keras.Function(model.inputs, [*_ends(model), endpoint(value)])
    known = {id(layer) for layer in model.layers}
    for name in _GRAPH:
        # Keras would track the layers of a graph as attributes of the model.
        model.__dict__[name] = getattr(graph, name)
    for layer in model.layers:
        if id(layer) not in known:
            model._tracker.track(layer)


def _ends(model: keras.Model) -> list[Any]:
    """Return the outputs of a model and of the endpoints that were added before."""
    endpoints = [one for one in model.layers if isinstance(one, _Endpoint)]
    return [*model.outputs, *(one.output for one in endpoints)]
