"""Export of a Keras model to a file or directory for serving."""

import importlib.util
import os
import warnings
from collections.abc import Sequence
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
    if format == "keras":
        model.save(unfinished)
    else:
        with warnings.catch_warnings():
            # Keras itself triggers this warning by looking up names that NumPy has removed.
            warnings.filterwarnings("ignore", "In the future `np.object`", FutureWarning)
            model.export(unfinished, format=format, verbose=False, input_signature=input_signature)
    if tf.io.gfile.isdir(path):
        files.remove_all(path)
    tf.io.gfile.rename(unfinished, path, overwrite=True)


def _require_onnx(model: keras.Model) -> None:
    if importlib.util.find_spec("tf2onnx") is None:
        raise errors.ConfigValueError(
            "ONNX export requires tf2onnx, which is not installed: pip install "
            "'official-lite[export]'"
        )
    if model.dtype_policy.compute_dtype != "float32":
        raise errors.ConfigValueError(
            f"The model computes in {model.dtype_policy.compute_dtype}, which ONNX export does "
            "not support. Build the model with `runtime.mixed_precision_dtype: float32`."
        )
