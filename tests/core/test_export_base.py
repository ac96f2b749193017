import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import export_base
from official_lite.modeling.optimization import ema_optimizer
from tests import rounding

INPUTS = np.ones([2, 4], np.float32)


class Doubler(export_base.ExportModule):
    @tf.function
    def serve(self, inputs):
        return {"outputs": self.inference_step(self.preprocessor(inputs))}

    def get_inference_signatures(self, function_keys):
        spec = tf.TensorSpec([None, 4], tf.float32)
        return {function_keys["serve"]: self.serve.get_concrete_function(spec)}


def trained_model(seed=1):
    kernel = keras.initializers.GlorotUniform(seed)
    dense = keras.layers.Dense(2, kernel_initializer=kernel)
    return keras.Sequential([keras.Input((4,)), dense, keras.layers.Dropout(0.5)])


def export(tmp_path, model, keys=("serve",), name="export", **kwargs):
    module = Doubler(None, model, preprocessor=lambda x: 2.0 * x)
    return export_base.export(module, list(keys), f"{tmp_path}/{name}", **kwargs)


def test_exported_function_runs_the_model_in_inference_mode(tmp_path):
    model = trained_model()
    export_dir = export(tmp_path, model)
    served = tf.saved_model.load(export_dir).signatures["serving_default"](tf.constant(INPUTS))[
        "outputs"
    ]
    expected = model(2.0 * INPUTS, training=False)
    rounding.assert_close(served, expected, roundings=INPUTS.shape[1], scale=2.0)
    assert pathlib.Path(export_dir).parent == tmp_path / "export"


@pytest.mark.parametrize("use_directory", [True, False])
def test_export_restores_the_checkpoint_at_a_prefix_or_the_latest_in_a_directory(
    tmp_path, use_directory
):
    trained = trained_model(seed=2)
    prefix = tf.train.Checkpoint(model=trained).save(f"{tmp_path}/ckpt")
    fresh = trained_model(seed=3)
    export(tmp_path, fresh, checkpoint_path=str(tmp_path) if use_directory else prefix)
    np.testing.assert_array_equal(fresh.get_weights()[0], trained.get_weights()[0])


def test_export_with_a_missing_checkpoint_raises(tmp_path):
    for path in (str(tmp_path), f"{tmp_path}/ckpt-7"):
        with pytest.raises(errors.CheckpointError, match="There is no checkpoint at"):
            export(tmp_path, trained_model(), checkpoint_path=path)


def test_custom_inference_step_receives_the_model():
    module = Doubler(
        None, 3.0, inference_step=lambda x, model: x * model, preprocessor=lambda x: x + 1.0
    )
    np.testing.assert_array_equal(module.serve(tf.constant(INPUTS))["outputs"], 6.0 * INPUTS)


def test_values_of_a_function_keys_dict_become_the_signature_names(tmp_path):
    module = Doubler(None, trained_model(), preprocessor=tf.identity)
    export_dir = export_base.export(module, {"serve": "mine"}, str(tmp_path), timestamped=False)
    assert export_dir == str(tmp_path)
    assert list(tf.saved_model.load(export_dir).signatures) == ["mine"]


def test_exporting_a_list_of_several_function_keys_raises(tmp_path):
    with pytest.raises(errors.ConfigValueError, match="must contain exactly one element"):
        export(tmp_path, trained_model(), keys=("serve", "other"))


def test_export_path_with_control_characters_raises(tmp_path):
    with pytest.raises(errors.ConfigValueError, match="contains control characters"):
        export(tmp_path, trained_model(), name="a\nb")


def test_export_directories_created_in_the_same_second_have_different_names(tmp_path, monkeypatch):
    monkeypatch.setattr(export_base.time, "time", lambda: 1000.5)
    for number in range(1000, 1010):
        directory = export_base.get_timestamped_export_dir(str(tmp_path))
        assert directory == f"{tmp_path}/{number}"
        pathlib.Path(directory).mkdir()
    with pytest.raises(RuntimeError, match="unique export directory"):
        export_base.get_timestamped_export_dir(str(tmp_path))


def test_export_with_an_optimizer_that_averages_the_weights_contains_the_averages(tmp_path):
    def averaged(seed):
        model = trained_model(seed)
        optimizer = ema_optimizer.ExponentialMovingAverage(keras.optimizers.SGD(0.1), 0.5)
        optimizer.shadow_copy(model)
        optimizer.build(model.trainable_variables)
        return model, optimizer

    trained, optimizer = averaged(seed=2)
    averages = trained.get_weights()[0]
    trained.layers[0].kernel.assign_add(tf.ones_like(trained.layers[0].kernel))
    path = tf.train.Checkpoint(model=trained, optimizer=optimizer).save(f"{tmp_path}/ckpt")
    model, fresh = averaged(seed=3)
    export_dir = export(tmp_path, model, checkpoint_path=path, optimizer=fresh)
    loaded = tf.saved_model.load(export_dir)
    served = loaded.signatures["serving_default"]
    [kernel] = [each for each in served.variables if each.shape == averages.shape]
    np.testing.assert_array_equal(kernel, averages)
    np.testing.assert_array_equal(model.get_weights()[0], trained.get_weights()[0])
