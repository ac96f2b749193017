import os

import pytest

from official_lite.common import errors
from official_lite.tools.exporting import checked_export
from tests import rounding

# Keras itself, and those who load what it has written.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def test_every_format_computes_what_the_model_does(read_run, trained, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("ai_edge_litert")
    params, directory = read_run(trained).params, str(tmp_path)
    exports = checked_export.export_checkpoint(
        params,
        trained,
        os.path.join(trained, "ckpt-4"),
        ["tf_saved_model", "keras", "litert", "onnx"],
        directory=directory,
    )
    assert sorted(os.listdir(tmp_path)) == ["4", "4.keras", "4.onnx", "4.tflite"]
    # The longest sum is that of the seven inputs of a layer.
    tolerance = rounding.tolerance(roundings=7)
    for export in exports:
        assert export.size > 500
        assert export.max_output > 0.1
        assert export.is_within(tolerance)
        assert not export.is_within(-tolerance)


def test_model_that_nobody_can_load_back_is_an_error(read_run, trained, tmp_path, monkeypatch):
    def load_exported(path, format):
        raise TypeError("unknown class")

    monkeypatch.setattr(checked_export.exported_model, "load_exported", load_exported)
    with pytest.raises(errors.OfficialLiteError, match=r"loaded back as keras: .*unknown class"):
        checked_export.export_checkpoint(
            read_run(trained).params,
            trained,
            os.path.join(trained, "ckpt-4"),
            ["keras"],
            directory=str(tmp_path),
        )


def test_difference_counts_as_a_part_of_the_largest_output():
    def export(difference, output):
        return checked_export.Export(
            format="onnx",
            path="",
            checkpoint="",
            size=1,
            max_difference=difference,
            max_output=output,
        )

    assert export(0.01, 1000.0).is_within(1e-4)
    assert not export(0.01, 0.001).is_within(1e-4)
    assert not export(float("nan"), 1.0).is_within(1e-4)
