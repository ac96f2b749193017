"""Export of a Keras model to a file or directory for serving."""

import contextlib
import functools
import importlib.util
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import errors, files

__all__ = ["FORMATS", "write_model"]

FORMATS = {"keras": ".keras", "tf_saved_model": "", "litert": ".tflite", "onnx": ".onnx"}
"""The file name extension of each format. A SavedModel is a directory and has none."""

_UNFINISHED = ".unfinished-"


def write_model(
    model: keras.Model,
    path: str,
    format: str,
    *,
    input_signature: Sequence[Any] | None = None,
) -> None:
    """Write a model atomically: `path` holds either the complete new model or its previous content.

    Args:
        model: The model, with its variables. For `onnx` without an `input_signature`, it must have
            been called before.
        path: The destination, with the extension of the format.
        format: One of `FORMATS`.
        input_signature: The specs of the model's arguments, for models whose inputs Keras does not
            know. Not used for `keras`, which saves a model rather than a function.

    Raises:
        errors.ConfigValueError: For `onnx`: tf2onnx is not installed, or the model does not compute
            in float32.
    """
    if format == "onnx":
        _require_onnx(model)
    directory, name = os.path.split(path)
    unfinished = os.path.join(directory, f"{_UNFINISHED}{name}")
    tf.io.gfile.makedirs(directory or os.curdir)
    try:
        _write(model, unfinished, format, input_signature)
    except BaseException as error:
        # Remove the incomplete file, because on a full disk other files need its space.
        if files.exists(unfinished):
            files.remove_all(unfinished)
        if isinstance(error, OSError) and error.errno and not error.filename:
            error.filename = path
        raise
    if tf.io.gfile.isdir(path):
        files.remove_all(path)
    tf.io.gfile.rename(unfinished, path, overwrite=True)


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
