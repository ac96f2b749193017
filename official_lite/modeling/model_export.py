"""Export of a Keras model to a file or directory for serving."""

import contextlib
import functools
import importlib.util
import inspect
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import errors, files, keras_variables

__all__ = ["FORMATS", "recording_inputs", "write_model"]

FORMATS = {"keras": ".keras", "tf_saved_model": "", "litert": ".tflite", "onnx": ".onnx"}
"""The file name extension of each format. A SavedModel is a directory and has none."""

_UNFINISHED = ".unfinished-"

# The attribute of a model with the specs that `recording_inputs` has recorded. Like the other
# attributes with the prefix `_self_`, it is not a part of the model.
_RECORDED = "_self_input_signature"


def write_model(
    model: keras.Model,
    path: str,
    format: str,
    *,
    input_signature: Sequence[Any] | None = None,
) -> None:
    """Write a model, which replaces the previous content of `path` only when it is complete.

    A file is replaced atomically, and a SavedModel as by `files.replace_tree`.

    Args:
        model: The model, with its variables. For `onnx` without an `input_signature`, it must have
            been called before.
        path: The destination, with the extension of the format.
        format: One of `FORMATS`.
        input_signature: The specs of the model's arguments, for models whose inputs Keras does not
            know; by default those that `recording_inputs` has recorded. Not used for `keras`, which
            saves a model rather than a function.

    Raises:
        errors.ConfigValueError: For `onnx`: tf2onnx is not installed, or the model does not compute
            in float32.
    """
    if format == "onnx":
        _require_onnx(model)
    directory, name = os.path.split(path)
    unfinished = os.path.join(directory, f"{_UNFINISHED}{name}")
    tf.io.gfile.makedirs(directory or os.curdir)
    if files.exists(unfinished):  # A process was killed before its model was complete.
        files.remove_all(unfinished)
    if not getattr(model, "inputs", None):
        input_signature = input_signature or vars(model).get(_RECORDED)
    try:
        _write(model, unfinished, format, input_signature)
    except BaseException as error:
        # Remove the incomplete file, because on a full disk other files need its space.
        if files.exists(unfinished):
            files.remove_all(unfinished)
        if isinstance(error, OSError) and error.errno and not error.filename:
            error.filename = path
        raise
    if tf.io.gfile.isdir(unfinished) or tf.io.gfile.isdir(path):
        files.replace_tree(unfinished, path)
    else:
        files.rename(unfinished, path)


@contextlib.contextmanager
def recording_inputs(model: keras.Model) -> Iterator[None]:
    """Record the types of the tensors with which a model is called in the context, for an export.

    Of a model without declared inputs, Keras records only the shapes, and takes all inputs for
    floating-point numbers with the precision of the computation.
    """
    call = model.call
    signature = inspect.signature(call)

    def noting_call(*args: Any, **kwargs: Any) -> Any:
        values = keras_variables.tensors_of_call(signature, args, kwargs)
        # Replace the specs of earlier calls: to build a model, Keras calls it with inputs of other
        # types.
        if all(isinstance(leaf, tf.Tensor) for leaf in keras.tree.flatten(values)):
            vars(model)[_RECORDED] = keras.tree.map_structure(_spec_of, values)
        return call(*args, **kwargs)

    with keras_variables.replacing_call(model, noting_call):
        yield


def _spec_of(tensor: tf.Tensor) -> tf.TensorSpec:
    shape = tensor.shape
    if shape.rank:
        shape = tf.TensorShape([None]).concatenate(shape[1:])
    # Under mixed precision, the model itself converts its inputs to half precision.
    dtype = tf.float32 if tensor.dtype in (tf.float16, tf.bfloat16) else tensor.dtype
    return tf.TensorSpec(shape, dtype)


def _write(
    model: keras.Model, path: str, format: str, input_signature: Sequence[Any] | None
) -> None:
    if format == "keras":
        model.save(path)
        return
    with warnings.catch_warnings(), _called_for_inference(model):
        # Ignore a warning that Keras itself triggers by looking up names that NumPy has removed.
        warnings.filterwarnings("ignore", "In the future `np.object`", FutureWarning)
        model.export(path, format=format, verbose=False, input_signature=input_signature)


@contextlib.contextmanager
def _called_for_inference(model: keras.Model) -> Iterator[None]:
    """Let `model.export` call the model with `training=False`.

    Without the argument, layers such as `RandomFlip` would run in training mode.
    """
    # Bypass Keras' `__setattr__`, which would track the attribute as a part of the model.
    vars(model)["__call__"] = functools.partial(model.__call__, training=False)
    try:
        yield
    finally:
        del vars(model)["__call__"]


def _require_onnx(model: keras.Model) -> None:
    if importlib.util.find_spec("tf2onnx") is None:
        raise errors.ConfigValueError(
            "ONNX export requires tf2onnx, which is not installed. Install it with `pip install "
            "'official-lite[export]'`."
        )
    if model.dtype_policy.compute_dtype != "float32":
        raise errors.ConfigValueError(
            f"The model computes in {model.dtype_policy.compute_dtype}, which ONNX export does "
            "not support. Build the model with `runtime.mixed_precision_dtype: float32`."
        )
