"""The size of a model: parameters, layer by layer, and floating-point operations."""

import math
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import files, keras_variables, nests

__all__ = ["describe", "try_count_flops", "try_count_params", "write_model_params"]


# The maximum number of layers to list. One more line summarizes the remaining layers.
_MAX_LINES = 40


def describe(model: keras.Model | tf.Module) -> str | None:
    """Describe the number of parameters of a model, with one line per layer that has parameters.

    Args:
        model: A Keras model, or any object with variables. Only top-level layers are listed: a
            layer that contains other layers is one line.

    Returns:
        The description, or None if the model has no variables yet.
    """
    variables = _parameters(model)
    count, trainable = _size(variables), _size(model.trainable_variables)
    if not count:
        return None
    frozen = f", {count - trainable:,} of them frozen" if count > trainable else ""
    megabytes = sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables) / 1e6
    title = f"The model has {count:,} parameters{frozen}, in {megabytes:,.1f} MB."
    return "\n".join([title, *_layer_lines(model)])


def write_model_params(model: keras.Model | tf.Module, output_path: str) -> None:
    """Write one line per variable, with its path and shape, and the total to a text file."""
    lines = [f"{keras_variables.path_of(v)} {list(v.shape)}" for v in model.variables]
    files.write_text(
        output_path, "\n".join([*lines, "", f"Total params: {_size(model.variables)}", ""])
    )


def try_count_params(model: keras.Model | tf.Module, trainable_only: bool = False) -> int | None:
    """Return the number of parameters, or None if the model has no variables yet."""
    variables = model.trainable_variables if trainable_only else _parameters(model)
    return _size(variables) if variables else None


def try_count_flops(
    model: keras.Model | tf.Module,
    inputs_kwargs: dict[str, Any] | None = None,
    output_path: str | None = None,
) -> int | None:
    """Count the floating-point operations for a batch of one example.

    A multiply-add counts as two operations.

    Args:
        model: A Keras model.
        inputs_kwargs: `tf.TensorSpec`s by argument name, for a model whose inputs are unknown.
        output_path: The file for the profiler's table.

    Returns:
        The count, or None if the inputs are unknown or the model cannot be traced with them.
    """
    specs = inputs_kwargs or _single_example_specs(model)
    if specs is None:
        return None
    try:
        graph = _traced_graph(model, specs)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        logging.info(
            "Can't count FLOPs, because the model can't be traced with the inputs %s: %s",
            specs,
            error,
        )
        return None
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = f"file:outfile={output_path}" if output_path else "none"
    profile = tf.compat.v1.profiler.profile(
        graph=graph, run_meta=tf.compat.v1.RunMetadata(), options=options
    )
    return int(profile.total_float_ops)


def _parameters(model: keras.Model | tf.Module) -> list[Any]:
    """Return the variables of a model, without the random generator states of a Keras model."""
    return list(model.weights if isinstance(model, keras.Model) else model.variables)


def _layer_lines(model: keras.Model | tf.Module) -> list[str]:
    layers = model.layers if isinstance(model, keras.Model) else []
    layers = [layer for layer in layers if layer.weights]
    rows = [(layer.name, type(layer).__name__, _count_text(layer)) for layer in layers[:_MAX_LINES]]
    if others := layers[_MAX_LINES:]:
        rest = sum(_size(layer.weights) for layer in others)
        rows.append((f"{len(others)} more layers", "", f"{rest:,}"))
    names, kinds = (max((len(row[n]) for row in rows), default=0) for n in (0, 1))
    return [f"  {name:<{names}}  {kind:<{kinds}}  {count}" for name, kind, count in rows]


def _count_text(layer: keras.Layer) -> str:
    frozen = "" if layer.trainable_variables else " (not trained)"
    return f"{_size(layer.weights):,}{frozen}"


def _size(variables: list[Any]) -> int:
    return sum(math.prod(v.shape) for v in variables)


def _single_example_specs(model: keras.Model | tf.Module) -> Any:
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        return None
    return [tf.TensorSpec([1, *x.shape[1:]], x.dtype) for x in model.inputs]


def _traced_graph(model: keras.Model | tf.Module, specs: nests.Nest) -> tf.Graph:
    if isinstance(specs, dict):
        return tf.function(model).get_concrete_function(**specs).graph
    inputs = specs if len(specs) > 1 else specs[0]
    return tf.function(model).get_concrete_function(inputs).graph
