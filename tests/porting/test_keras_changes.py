"""Ported functions of `keras.backend` compute what they compute in Keras 2."""

import inspect
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

# The functions of Keras 2 as Keras 3 keeps them for old code.
from keras._tf_keras.keras import backend

from official_lite.porting import keras_changes, project
from tests import rounding

_X = np.float32([[[-0.5, 0.25], [0.5, 1.5]]])
# The values of arguments without a default. Arrays are passed as tensors.
_ARGUMENTS: dict[str, Any] = {
    "a": 2.0,
    "axis": 0,
    "dtype": "int32",
    "indices": [2, 0],
    # Keras 2 takes None for infinity.
    "max_value": None,
    "min_value": 0.25,
    "n": (1, 2, 1),
    "num_classes": 3,
    "output": np.float32([[0.0, 1.0], [0.25, 0.75]]),
    "pattern": (2, 0, 1),
    "rep": 2,
    "shape": (4, 1),
    "size": 2,
    "target": np.float32([[1.0, 0.0], [0.0, 1.0]]),
    "variables": _X,
    "x": _X,
    "y": np.float32([0.25, 0.5]),
}
_SPECIAL = {"sparse_categorical_crossentropy": {"target": np.array([0, 1])}}
_ALSO = (
    "binary_crossentropy clip cumprod cumsum eye hard_sigmoid l2_normalize ones reshape shape "
    "sparse_categorical_crossentropy sqrt stop_gradient tile zeros"
)
_COMPARED = sorted(
    name
    for name in {
        *keras_changes.BACKEND_TO_OPS,
        *_ALSO.split(),
    }
    if hasattr(backend, name)
)


def _arguments(name: str) -> dict[str, Any]:
    parameters = inspect.signature(getattr(backend, name)).parameters.values()
    required = [one.name for one in parameters if one.default is one.empty]
    values = _ARGUMENTS | _SPECIAL.get(name, {})
    return {
        key: tf.constant(values[key]) if isinstance(values[key], np.ndarray) else values[key]
        for key in required
    }


@pytest.fixture(scope="module")
def ported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return functions that call the ported functions of `keras.backend`, by keyword."""
    lines = ["from tensorflow.keras import backend as K"]
    for name in _COMPARED:
        keys = ", ".join(_arguments(name))
        passed = ", ".join(f"{key}={key}" for key in _arguments(name))
        lines += [f"def {name}_({keys}):", f"  return K.{name}({passed})"]
    path: pathlib.Path = tmp_path_factory.mktemp("ported") / "module.py"
    path.write_text("\n".join(lines))
    (file,) = project.port_project([str(path)]).files
    scope: dict[str, Any] = {}
    exec(file.after, scope)
    return scope


@pytest.mark.parametrize("name", _COMPARED)
def test_ported_backend_function_has_the_defaults_and_results_of_keras_2(
    ported: dict[str, Any], name: str
) -> None:
    arguments = _arguments(name)
    expected = getattr(backend, name)(**arguments)
    actual = ported[f"{name}_"](**arguments)
    assert isinstance(actual, tf.Variable) == isinstance(expected, tf.Variable)
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    # A function sums at most eight terms.
    rounding.assert_close(np.nan_to_num(actual), np.nan_to_num(expected), roundings=8)
