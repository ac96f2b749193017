"""Writes a Keras model as a file or folder that others can serve."""

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
"""How the name of what is written ends, by format. A SavedModel is a folder."""

_UNFINISHED = ".unfinished-"


def write_model(
    model: keras.Model,
    path: str,
    format: str,
    *,
    input_signature: Sequence[Any] | None = None,
) -> None:
    """Writes a model: what is there under the path is complete, or what was there before.

    Args:
        model: The model, with its variables. For `onnx` it has to have been called, unless there
            is a signature.
        path: Where to, with the ending of the format.
        format: One of `FORMATS`.
        input_signature: The specs of the model's arguments, for models that are called with what
            Keras does not know of. Not for `keras`, which holds a model and not a function.

    Raises:
        errors.ConfigValueError: For `onnx`: tf2onnx is not installed, or the model computes in
            another precision than float32.
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
            # Of Keras itself, as it looks for names that NumPy once had.
            warnings.filterwarnings("ignore", "In the future `np.object`", FutureWarning)
            model.export(unfinished, format=format, verbose=False, input_signature=input_signature)
    if tf.io.gfile.isdir(path):
        files.remove_all(path)
    tf.io.gfile.rename(unfinished, path, overwrite=True)


def _require_onnx(model: keras.Model) -> None:
    if importlib.util.find_spec("tf2onnx") is None:
        raise errors.ConfigValueError(
            "ONNX needs tf2onnx, which is not installed: pip install 'official-lite[export]'"
        )
    if model.dtype_policy.compute_dtype != "float32":
        raise errors.ConfigValueError(
            f"The model computes in {model.dtype_policy.compute_dtype}, which can't be put into "
            "ONNX. Make it with `runtime.mixed_precision_dtype: float32`."
        )
