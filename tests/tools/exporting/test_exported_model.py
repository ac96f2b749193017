"""What calls an export; all formats are in `test_checked_export`."""

import numpy as np
import pytest

from official_lite.common import errors
from official_lite.tools.exporting import exported_model, model_inputs

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([NAN, INF], [NAN, INF], 0.0),
        ([NAN, 1.0], [1.0, 1.0], INF),
        ([1.0], [INF], INF),
        ([[1.0]], [1.0], INF),
        ([], [], 0.0),
        ([3], [5], 2.0),
        ([b"a"], [b"a"], 0.0),
        ([b"a"], [b"b"], INF),
    ],
)
def test_largest_difference(expected, found, difference):
    arrays = [np.asarray(each) for each in (expected, found)]
    assert exported_model.largest_difference(arrays[:1], arrays[1:]) == difference
    assert exported_model.largest_difference(arrays[:1], []) == INF


def test_inputs_find_their_names():
    given = {"ids": 1, "mask": 2}
    assert exported_model._by_name(["mask", "ids"], given) == given
    assert exported_model._by_name(["mask"], given) == {"mask": 2}
    assert exported_model._by_name(["ids_1", "mask_1"], given) == {"ids_1": 1, "mask_1": 2}
    with pytest.raises(errors.ConfigValueError, match="expects words"):
        exported_model._by_name(["words"], given)


@pytest.mark.parametrize(("format", "package"), [("litert", "ai-edge"), ("onnx", "onnxruntime")])
def test_package_that_is_missing_is_named(monkeypatch, format, package):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    inputs = model_inputs.ModelInputs(args=[], names=[])
    with pytest.raises(errors.ConfigValueError, match=f"{package}.* is not installed"):
        exported_model.call_exported("none", format, inputs)
