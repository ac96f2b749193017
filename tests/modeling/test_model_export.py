import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.modeling import model_export

# Keras itself triggers this warning with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

INPUTS = np.ones([1, 3], np.float32)


def _model(**kwargs):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, **kwargs)])


def test_export_replaces_an_existing_model_and_leaves_no_temporary_files(tmp_path):
    path = tmp_path / "models" / "one.keras"
    for _ in range(2):
        model = _model()
        model_export.write_model(model, str(path), "keras")
    assert [each.name for each in path.parent.iterdir()] == ["one.keras"]
    np.testing.assert_array_equal(keras.models.load_model(path)(INPUTS), model(INPUTS))


def test_failed_export_keeps_the_previous_model(tmp_path, monkeypatch):
    path = tmp_path / "one.keras"
    path.write_text("old")

    def save(self, path):
        raise OSError("no space")

    monkeypatch.setattr(keras.Sequential, "save", save)
    with pytest.raises(OSError, match="no space"):
        model_export.write_model(_model(), str(path), "keras")
    assert path.read_text() == "old"


def test_exported_model_does_not_augment_its_inputs(tmp_path):
    model = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.RandomFlip(seed=1)])
    images = np.arange(8 * 16, dtype=np.float32).reshape([8, 4, 4, 1])
    model_export.write_model(model, str(tmp_path / "one"), "tf_saved_model")
    served = tf.saved_model.load(str(tmp_path / "one")).serve(images)
    np.testing.assert_array_equal(served, images)
    assert "__call__" not in vars(model)


def test_onnx_export_requires_tf2onnx_and_float32(tmp_path, monkeypatch):
    model = _model()
    model.dtype_policy = keras.DTypePolicy("mixed_bfloat16")
    path = str(tmp_path / "one.onnx")
    with pytest.raises(errors.ConfigValueError, match="computes in bfloat16"):
        model_export.write_model(model, path, "onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(errors.ConfigValueError, match=r"official-lite\[export\]"):
        model_export.write_model(model, path, "onnx")


def test_files_that_a_killed_export_left_are_not_part_of_the_next_export(tmp_path):
    unfinished = tmp_path / ".unfinished-one"
    unfinished.mkdir()
    (unfinished / "half").touch()
    for _ in range(2):
        model_export.write_model(_model(), str(tmp_path / "one"), "tf_saved_model")
        assert [path.name for path in tmp_path.iterdir()] == ["one"]
        assert not (tmp_path / "one" / "half").exists()
