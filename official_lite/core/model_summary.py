"""How large a model is: parameters and floating-point operations."""

import math
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import files

__all__ = ["try_count_flops", "try_count_params", "write_model_params"]


def write_model_params(model: Any, output_path: str) -> None:
    """Writes one line a variable, with its path and shape, and the total, to a text file."""
    lines = [f"{_path(v)} {list(v.shape)}" for v in model.variables]
    files.write_text(
        output_path, "\n".join([*lines, "", f"Total params: {_size(model.variables)}", ""])
    )


def try_count_params(model: Any, trainable_only: bool = False) -> int | None:
    """The number of parameters; None while the model has no variables yet."""
    variables = model.trainable_variables if trainable_only else model.variables
    return _size(variables) if variables else None


def try_count_flops(
    model: Any, inputs_kwargs: dict[str, Any] | None = None, output_path: str | None = None
) -> int | None:
    """Floating-point operations (multiply and add count as two) for a batch of one example.

    Args:
        model: A Keras model.
        inputs_kwargs: `tf.TensorSpec`s by argument name, for a model whose inputs are unknown.
        output_path: Where to write the profiler's table.

    Returns:
        None if the inputs are unknown or the model can't be traced with them.
    """
    specs = inputs_kwargs or _single_example_specs(model)
    if specs is None:
        return None
    try:
        graph = _traced_graph(model, specs)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        logging.info("FLOPs are not counted: the model can't be traced on %s: %s", specs, error)
        return None
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = f"file:outfile={output_path}" if output_path else "none"
    profile = tf.compat.v1.profiler.profile(
        graph=graph, run_meta=tf.compat.v1.RunMetadata(), options=options
    )
    return int(profile.total_float_ops)


def _size(variables: list[Any]) -> int:
    return sum(math.prod(v.shape) for v in variables)


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))


def _single_example_specs(model: Any) -> Any:
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        return None
    return [tf.TensorSpec([1, *x.shape[1:]], x.dtype) for x in model.inputs]


def _traced_graph(model: Any, specs: Any) -> tf.Graph:
    if isinstance(specs, dict):
        return tf.function(model).get_concrete_function(**specs).graph
    inputs = specs if len(specs) > 1 else specs[0]
    return tf.function(model).get_concrete_function(inputs).graph
