import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.compression import configs, projections
from official_lite.modeling import distributed_gradients


def _create(config, model, train_steps=0):
    optimizer = distributed_gradients.make_distributed(keras.optimizers.SGD())
    return projections.create_projections(config, model, optimizer, train_steps)


def _model():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="logits")])


def test_nothing_to_do_without_a_config() -> None:
    assert _create(None, _model()) == _create(configs.CompressionConfig(), _model()) == {}


def test_pattern_without_a_layer_is_refused() -> None:
    config = configs.CompressionConfig(pruning=configs.PruningConfig(include=["lgits"]))
    with pytest.raises(errors.ConfigValueError, match=r"pruning\.include` has 'lgits', which"):
        _create(config, _model())


def test_model_that_is_not_of_keras_is_refused() -> None:
    config = configs.CompressionConfig(clustering=configs.ClusteringConfig())
    with pytest.raises(errors.ConfigValueError, match="supports only Keras models"):
        _create(config, tf.Module())


def test_training_that_ends_before_the_pruning_is_warned_of(caplog) -> None:
    config = configs.CompressionConfig(pruning=configs.PruningConfig(end_step=100))
    _create(config, _model(), train_steps=50)
    assert "until step 100, but training ends at step 50" in caplog.text
