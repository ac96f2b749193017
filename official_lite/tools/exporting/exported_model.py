"""Calling of exported models as a server would: without the code that built them."""

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite.common import errors
from official_lite.tools.exporting.model_inputs import ModelInputs

__all__ = ["ExportedCall", "call_exported", "largest_difference", "load_exported", "outputs_of"]

Outputs = list[Any]
ExportedCall = Callable[[ModelInputs], Outputs]


def call_exported(path: str, format: str, inputs: ModelInputs) -> Outputs:
    """Load an exported model and call it.

    Args:
        path: The exported file or folder.
        format: One of `modeling.model_export.FORMATS`.
        inputs: The inputs of the call.

    Returns:
        The output arrays, in the order of `keras.tree.flatten`.

    Raises:
        errors.ConfigValueError: A package that is needed to load the model is not installed.
    """
    return load_exported(path, format)(inputs)


def load_exported(path: str, format: str) -> ExportedCall:
    """Load an exported model and return a function that calls it.

    Args:
        path: The exported file or folder.
        format: One of `modeling.model_export.FORMATS`.

    Raises:
        errors.ConfigValueError: A package that is needed to load the model is not installed.
    """
    return _LOADERS[format](path)


def outputs_of(result: Any) -> Outputs:
    """Return the arrays in a model's result."""
    return [np.asarray(each) for each in keras.tree.flatten(result)]


def largest_difference(expected: Outputs, found: Outputs) -> float:
    """Return the largest absolute difference of corresponding outputs.

    It is infinite if the shapes differ or if other values than numbers differ.
    """
    if [each.shape for each in expected] != [each.shape for each in found]:
        return float("inf")
    return max(map(_difference, expected, found), default=0.0)


def _load_keras(path: str) -> ExportedCall:
    loaded = keras.models.load_model(path, compile=False)
    call = tf.function(lambda *args: loaded(*args, training=False))
    return lambda inputs: outputs_of(call(*_tensors(inputs)))


def _load_saved_model(path: str) -> ExportedCall:
    loaded = tf.saved_model.load(path)
    return lambda inputs: outputs_of(loaded.serve(*_tensors(inputs)))


def _load_litert(path: str) -> ExportedCall:
    if importlib.util.find_spec("ai_edge_litert") is None:
        raise _not_installed("LiteRT", "ai-edge-litert")
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=path)
    runner = interpreter.get_signature_runner()
    (signature,) = interpreter.get_signature_list().values()

    def call(inputs: ModelInputs) -> Outputs:
        result = runner(**_by_name(signature["inputs"], inputs.arrays()))
        return [result[name] for name in sorted(result, key=_with_numbers)]

    return call


def _load_onnx(path: str) -> ExportedCall:
    if importlib.util.find_spec("onnxruntime") is None:
        raise _not_installed("ONNX", "onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def call(inputs: ModelInputs) -> Outputs:
        found: Outputs = session.run(None, _by_name(names, inputs.arrays()))
        return found

    return call


_LOADERS: Mapping[str, Callable[[str], ExportedCall]] = {
    "keras": _load_keras,
    "tf_saved_model": _load_saved_model,
    "litert": _load_litert,
    "onnx": _load_onnx,
}


def _tensors(inputs: ModelInputs) -> list[Any]:
    tensors: list[Any] = keras.tree.map_structure(tf.constant, list(inputs.args))
    return tensors


def _by_name(wanted: Sequence[str], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the wanted inputs; a converter removes inputs that have no effect.

    A converter also renames inputs whose names are taken. They are then matched by position.
    """
    if set(wanted) <= set(arrays):
        return {name: arrays[name] for name in wanted}
    if len(wanted) == len(arrays):
        return dict(zip(wanted, arrays.values(), strict=True))
    raise errors.ConfigValueError(
        f"The exported model expects {', '.join(wanted)}, but the model was called with "
        f"{', '.join(arrays)}."
    )


def _with_numbers(name: str) -> list[Any]:
    """Return a sort key that sorts `output_10` after `output_9`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _difference(expected: Any, found: Any) -> float:
    if not expected.size:
        return 0.0
    if expected.dtype.kind not in "biuf":
        # Strings, or `bfloat16`, which NumPy does not treat as a number type.
        if expected.dtype.kind in "OSU":
            return 0.0 if np.array_equal(expected, found) else float("inf")
        expected, found = expected.astype(np.float32), np.asarray(found).astype(np.float32)
    one, two = (np.asarray(each).astype(np.float64) for each in (expected, found))
    # Equal infinities and pairs of NaN count as equal.
    same = (one == two) | (np.isnan(one) & np.isnan(two))
    gaps = np.abs(np.subtract(one, two, out=np.zeros_like(one), where=~same))
    return float(np.nan_to_num(gaps, nan=np.inf, posinf=np.inf).max())


def _not_installed(what: str, package: str) -> errors.ConfigValueError:
    return errors.ConfigValueError(
        f"{what} was written, but can't be loaded and compared: {package} is not installed. pip "
        "install 'official-lite[export]'"
    )
