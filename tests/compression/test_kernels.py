import keras
import pytest

from official_lite.common import errors
from official_lite.compression import kernels


def _model(*layers, shape=(8, 8, 4)):
    return keras.Sequential([keras.Input(shape), *layers])


@pytest.mark.parametrize(
    ("layer", "axis"),
    [
        (keras.layers.Dense(2), 0),
        (keras.layers.Conv2D(2, 3), 2),
        (keras.layers.Conv2DTranspose(2, 3), 3),
        (keras.layers.EinsumDense("abcd,dhk->abchk", (None, 8, 2, 3)), 0),
        (keras.layers.EinsumDense("abcd,cdk->abk", (None, 8, 2)), 1),
    ],
)
def test_input_axis_is_the_one_that_the_layer_sums_over(layer, axis) -> None:
    (kernel,) = kernels.find_kernels(_model(layer), [], [], block="pruning")
    assert kernel.input_axis == axis


def test_biases_depthwise_and_frozen_kernels_are_left_out() -> None:
    frozen = keras.layers.Dense(4, trainable=False)
    model = _model(keras.layers.DepthwiseConv2D(3), frozen, keras.layers.Dense(2, name="found"))
    (kernel,) = kernels.find_kernels(model, [], [], block="pruning")
    assert kernel.layer.name == "found"


def test_nothing_left_is_an_error_that_lists_the_layers() -> None:
    model = _model(keras.layers.Dense(2, name="only"))
    with pytest.raises(errors.ConfigValueError, match=r"`pruning` selects no kernel .*only"):
        kernels.find_kernels(model, [], ["only"], block="pruning")
