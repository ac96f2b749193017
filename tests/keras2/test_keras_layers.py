"""Attention and convolutions with the extension points of Keras 2."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import keras2
from tests import rounding


@pytest.fixture
def inputs() -> tf.Tensor:
    return tf.random.stateless_normal([2, 3, 8], seed=[1, 2])


@pytest.mark.parametrize("arguments", [{}, {"use_causal_mask": True}, {"masked": True}])
def test_attention_outputs_and_scores_match_keras_3(inputs, arguments) -> None:
    if arguments.pop("masked", False):
        arguments = {"attention_mask": tf.constant([[[1, 1, 0]] * 3] * 2)}
    theirs = keras.layers.MultiHeadAttention(2, 4)
    expected = theirs(inputs, inputs, return_attention_scores=True, **arguments)
    ours = keras2.MultiHeadAttention(2, 4)
    ours(inputs, inputs)
    ours.set_weights(theirs.get_weights())
    outputs = ours(inputs, inputs, return_attention_scores=True, **arguments)
    for one, other in zip(outputs, expected, strict=True):
        # The roundings of sums over the inputs, a key, three positions, and two heads' values.
        rounding.assert_close(one, other, roundings=8 + 4 + 3 + 2 * 4)


class Projected(keras2.MultiHeadAttention):
    """Attention that also projects positions, as relative attention does."""

    def _build_from_signature(self, query, value, key=None):
        super()._build_from_signature(query=query, value=value, key=key)
        self._encoding_dense = keras2.EinsumDense(
            "abc,cde->abde", (None, 4, 16), **self._get_common_kwargs_for_sublayer()
        )
        self._encoding_dense.build((None, 3, 32))


@pytest.mark.parametrize("cls", [keras.initializers.GlorotUniform, keras.initializers.HeNormal])
def test_attention_and_einsum_kernels_are_initialized_with_keras_2_fan_in_and_fan_out(cls) -> None:
    initializer = cls(seed=1)
    layer = Projected(4, 16, value_dim=8, kernel_initializer=initializer, output_shape=(2, 40))
    layer(tf.ones([1, 3, 32]), tf.ones([1, 3, 24]))
    stack = keras2.EinsumDense("abc,cdef->abdef", (None, 2, 3, 4), kernel_initializer=initializer)
    stack.build((None, 3, 64))
    kernels = [one for one in [*layer.weights, *stack.weights] if one.name == "kernel"]
    assert [one.shape for one in kernels] == [
        (32, 4, 16),
        (24, 4, 16),
        (24, 4, 8),
        (4, 8, 2, 40),
        (32, 4, 16),
        (64, 2, 3, 4),
    ]
    for kernel in kernels:
        # Without an equation, Keras computes the fans from the shape, as Keras 2 always does.
        np.testing.assert_array_equal(kernel, initializer(kernel.shape))
    restored = keras.layers.deserialize(keras.layers.serialize(stack))
    assert restored.get_config() == stack.get_config()


class Biased(keras2.MultiHeadAttention):
    """Attention with a custom key projection, a bias on the scores, and a custom `call`."""

    def _build_from_signature(self, query, value, key=None):
        super()._build_from_signature(query=query, value=value, key=key)
        with tf.init_scope():
            self._key_dense = keras.layers.EinsumDense(
                "abc,cde->abde", (None, self._num_heads, self._key_dim), name="own_key"
            )
            self._output_dense = self._make_output_dense(
                self._query_shape.rank - 1, self._get_common_kwargs_for_sublayer()
            )

    def _build_attention(self, rank):
        super()._build_attention(rank)
        self.bias = self.add_weight("bias", [self._num_heads, 1, 1], initializer="ones")

    def _compute_attention(self, query, key, value, attention_mask=None, training=None):
        self.was_called = True
        return super()._compute_attention(query, key, value, attention_mask, training)

    def _masked_softmax(self, attention_scores, attention_mask=None):
        return self._softmax(attention_scores + self.bias, attention_mask)

    def call(self, query, value, attention_mask=None, training=False):
        if not self._built_from_signature:
            self._build_from_signature(query=query, value=value)
        return super().call(query, value, None, attention_mask, training=training)


@pytest.mark.parametrize("is_functional", [False, True])
def test_keras_2_methods_that_an_attention_subclass_overrides_are_called(
    inputs, is_functional
) -> None:
    layer = Biased(2, 4, output_shape=5)
    if is_functional:
        tensor = keras.Input((3, 8))
        outputs = keras.Model(tensor, layer(tensor, tensor))(inputs)
    else:
        outputs = layer(inputs, inputs, None, True)
    assert outputs.shape == (2, 3, 5)
    assert layer.was_called
    names = {weight.path.split("/", 1)[1] for weight in layer.weights}
    assert {"bias", "own_key/kernel"} <= names
    assert not any(name.startswith("key/") for name in names)


class TwoStreams(keras2.MultiHeadAttention):
    def call(self, content_stream, query_stream):
        return super().call(query_stream, content_stream)


class BuildsItself(keras2.MultiHeadAttention):
    def build(self, query_shape, value_shape):
        super().build(query_shape, value_shape)
        self.extra = self.add_weight("extra", [1])

    def call(self, query, value):
        return super().call(query, value)


class HasAnotherCall(BuildsItself):
    def call(self, query, value, key=None):
        return super().call(query, value) + self.extra


@pytest.mark.parametrize("cls", [BuildsItself, HasAnotherCall])
def test_attention_subclass_may_define_build_and_call_with_its_own_arguments(inputs, cls) -> None:
    layer = cls(2, 4)
    assert layer(inputs, inputs).shape == (2, 3, 8)
    assert layer.extra.shape == (1,)


def test_attention_subclass_may_rename_the_inputs_of_call(inputs) -> None:
    assert TwoStreams(2, 4)(inputs, inputs[:, :1]).shape == (2, 1, 8)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_loaded_attention_layer_reproduces_the_outputs_of_the_saved_layer(inputs, tmp_path) -> None:
    tensor = keras.Input((3, 8))
    layer = keras2.MultiHeadAttention(2, 4, output_shape=6, name="attention")
    model = keras.Model(tensor, layer(tensor, tensor))
    model.save(tmp_path / "model.keras")
    objects = {"MultiHeadAttention": keras2.MultiHeadAttention}
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects=objects)
    np.testing.assert_array_equal(loaded(inputs), model(inputs))


@pytest.mark.parametrize(
    "layer", [keras2.DepthwiseConv2D(3, name="a"), keras2.SeparableConv2D(4, 3, name="b")]
)
def test_depthwise_and_separable_convolutions_ignore_kernel_arguments(layer) -> None:
    arguments = {"kernel_initializer": "zeros", "kernel_regularizer": None}
    again = type(layer)(**{**layer.get_config(), **arguments})
    images = tf.ones([1, 5, 5, 2])
    assert again(images).shape == layer(images).shape
    assert again.get_config() == layer.get_config()


class CausalConv2D(keras2.Conv2D):
    """A convolution that is causal along the first of its two axes."""

    def _validate_init(self):
        assert self.filters

    def _compute_causal_padding(self, inputs):
        return [[0, 0], [self.kernel_size[0] - 1, 0], [0, 0], [0, 0]]


def test_convolution_subclass_may_define_causal_padding() -> None:
    layer = CausalConv2D(1, (2, 1), padding="causal", kernel_initializer="ones")
    assert layer.padding == "causal"
    assert layer(keras.Input([3, 1, 1])).shape == (None, 3, 1, 1)
    outputs = layer(tf.reshape([1.0, 2.0, 3.0], [1, 3, 1, 1]))
    assert tf.reshape(outputs, [-1]).numpy().tolist() == [1.0, 3.0, 5.0]
    with pytest.raises(ValueError, match="Causal padding"):
        keras2.Conv2D(1, 2, padding="causal")
