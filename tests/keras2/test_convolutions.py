import keras
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


class CausalConv2D(keras2.Conv2D):
    """Sees, of the first of its two axes, only what came before."""

    def _validate_init(self):
        assert self.filters

    def _compute_causal_padding(self, inputs):
        return [[0, 0], [self.kernel_size[0] - 1, 0], [0, 0], [0, 0]]


def test_subclass_may_pad_causally() -> None:
    layer = CausalConv2D(1, (2, 1), padding="causal", kernel_initializer="ones")
    assert layer.padding == "causal"
    assert layer(keras.Input([3, 1, 1])).shape == (None, 3, 1, 1)
    outputs = layer(tf.reshape([1.0, 2.0, 3.0], [1, 3, 1, 1]))
    assert tf.reshape(outputs, [-1]).numpy().tolist() == [1.0, 3.0, 5.0]
    with pytest.raises(ValueError, match="Causal padding"):
        keras2.Conv2D(1, 2, padding="causal")
