import pytest
import tensorflow as tf

from official_lite import keras2


@pytest.mark.parametrize(
    "layer", [keras2.DepthwiseConv2D(3, name="a"), keras2.SeparableConv2D(4, 3, name="b")]
)
def test_arguments_for_a_kernel_are_ignored(layer) -> None:
    arguments = {"kernel_initializer": "zeros", "kernel_regularizer": None}
    again = type(layer)(**{**layer.get_config(), **arguments})
    images = tf.ones([1, 5, 5, 2])
    assert again(images).shape == layer(images).shape
    assert again.get_config() == layer.get_config()
