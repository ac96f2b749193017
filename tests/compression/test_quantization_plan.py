import keras
import pytest

from official_lite.common import errors
from official_lite.compression import configs
from official_lite.compression.quantization_plan import make_plan, require_matches

layers = keras.layers


def _names(*given: keras.layers.Layer, **config: object) -> list[str]:
    """Return where a chain of layers is quantized."""
    inputs = x = keras.Input((8, 8, 2), name="x")
    for layer in given:
        x = layer(x)
    return make_plan(keras.Model(inputs, x), configs.QuantizationConfig(config)).names


def test_convolution_normalization_and_relu_have_one_range() -> None:
    chain = [layers.Conv2D(2, 1), layers.BatchNormalization(), layers.ReLU(name="relu")]
    assert _names(*chain) == ["x", "relu"]


def test_range_passes_through_pooling_and_reshaping() -> None:
    chain = [layers.MaxPooling2D(), layers.Flatten(), layers.Dropout(0.1)]
    assert _names(layers.Conv2D(2, 1, name="conv"), *chain) == ["x", "conv"]


def test_activation_that_is_no_relu_has_a_range_before_it() -> None:
    silu = layers.Conv2D(2, 1, activation="silu", name="conv")
    assert _names(silu) == ["x", "conv/before_silu", "conv"]
    # The range of the result is the same for every softmax.
    softmax = layers.Conv2D(2, 1, activation="softmax", name="conv")
    assert _names(softmax) == ["x", "conv/before_softmax"]


def test_excluded_layer_has_a_range_only_for_the_next_one() -> None:
    chain = [layers.Conv2D(2, 1, name="stem"), layers.Conv2D(2, 1, name="body")]
    assert _names(*chain, exclude=["stem"]) == ["stem", "body"]
    assert _names(*chain, exclude=["body"]) == ["x", "stem"]
    assert _names(*chain, include=["body"]) == ["stem", "body"]


def test_value_that_is_also_an_output_is_not_fused() -> None:
    inputs = keras.Input((4,), name="x")
    x = layers.Dense(2, name="dense")(inputs)
    model = keras.Model(inputs, [x, layers.ReLU(name="relu")(x)])
    assert make_plan(model, configs.QuantizationConfig()).names == ["x", "dense", "relu"]


def test_layer_that_is_not_supported_is_named() -> None:
    with pytest.raises(errors.ConfigValueError, match=r"'mine' is a SeparableConv2D.*exclude"):
        _names(layers.SeparableConv2D(2, 3, name="mine"))
    assert _names(layers.SeparableConv2D(2, 3, name="mine"), exclude=["mine"]) == []


def test_pattern_without_a_layer_is_an_error() -> None:
    config = configs.QuantizationConfig(exclude=["tail"])
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(2, name="head")(inputs))
    with pytest.raises(errors.ConfigValueError, match="'tail', which matches no layer"):
        require_matches(config, [make_plan(model, config)])
