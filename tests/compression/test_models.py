"""The one place where a model is compressed as its config says."""

import keras
import tensorflow as tf

from official_lite.compression import configs, models

PATHS = ["model/dense/kernel", "model/dense/bias"]


def _model() -> keras.Model:
    layers = [keras.Input((4,)), keras.layers.Dense(3, name="dense")]
    return keras.Sequential(layers, name="model")


def test_without_a_config_the_model_is_unchanged() -> None:
    model = _model()
    assert models.compress(model, None) is model
    assert [variable.path for variable in model.variables] == PATHS


def test_config_without_quantization_adds_no_variables() -> None:
    model = models.compress(_model(), configs.CompressionConfig())
    models.synchronize(model, configs.CompressionConfig())
    assert len(model.variables) == 2


def test_quantized_layers_keep_the_paths_of_their_weights() -> None:
    config = configs.CompressionConfig({"quantization": {}})
    model = models.compress(_model(), config)
    assert set(PATHS) < {variable.path for variable in model.variables}
    assert model(tf.ones([2, 4])).shape == (2, 3)
