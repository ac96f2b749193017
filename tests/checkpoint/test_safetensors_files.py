"""Weights in and out as safetensors."""

import importlib.util
from typing import Any

import keras
import numpy as np
import pytest

from official_lite.checkpoint import safetensors_files, warm_start
from official_lite.common import errors


def _model(count: int = 11) -> keras.Model:
    """Layers with the names that Keras generates, which differ from model to model."""
    layers = [keras.layers.Dense(2, bias_initializer="normal") for _ in range(count)]
    return keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(3, name="head")])


def _write(path: Any, model: keras.Model) -> str:
    file = str(path / "weights.safetensors")
    safetensors_files.write(file, [(w.path, w.numpy()) for w in model.weights])
    return file


def _assert_equal(model: keras.Model, other: keras.Model) -> None:
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


def test_weights_come_back_into_a_model_whose_layers_have_other_numbers(tmp_path) -> None:
    source, target = _model(), _model()
    assert source.weights[0].path != target.weights[0].path
    assert warm_start.load_weights(target, _write(tmp_path, source)).is_complete
    _assert_equal(source, target)


def test_what_is_missing_or_misshapen_is_named(tmp_path) -> None:
    file = _write(tmp_path, _model(1))
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(5, name="head")])
    with pytest.raises(errors.CheckpointError, match="head/kernel"):
        warm_start.load_weights(other, file)
    report = warm_start.load_weights(_model(1), file, modules="head")
    assert all("head/" in match.variable for match in report.matched)


def test_scalars_and_half_precision_keep_shape_and_dtype(tmp_path) -> None:
    file = str(tmp_path / "x.safetensors")
    scalar = keras.Variable(2.0, dtype="bfloat16").numpy()
    safetensors_files.write(file, [("b", scalar), ("a", np.zeros((0, 2), np.int32))])
    read = safetensors_files.SafetensorsFile(file)
    arrays = [read.read(tensor) for tensor in read.tensors]
    assert [(a.shape, a.dtype.name) for a in arrays] == [((0, 2), "int32"), ((), "bfloat16")]


def test_damaged_file_names_and_missing_package_are_errors(tmp_path, monkeypatch) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"no")
    with pytest.raises(errors.CheckpointError, match="is not a safetensors file"):
        safetensors_files.SafetensorsFile(str(tmp_path / "x.safetensors"))
    with pytest.raises(errors.ConfigValueError, match=r"ends in \.safetensors"):
        safetensors_files.write(str(tmp_path / "x.h5"), [])
    with pytest.raises(errors.ConfigValueError, match="Several weights are named a"):
        safetensors_files.write(str(tmp_path / "y.safetensors"), [("a", np.zeros(1))] * 2)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.ConfigValueError, match=r"official-lite\[safetensors\]"):
        safetensors_files.write(str(tmp_path / "y.safetensors"), [])
