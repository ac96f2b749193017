import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.modeling import activations, tf_utils
from tests import rounding


def test_get_activation_finds_official_lite_and_keras_activations_by_name():
    for name in ("gelu", "Mish", "HARD_SWISH"):
        assert tf_utils.get_activation(name) is getattr(activations, name.lower())
    assert tf_utils.get_activation("relu") is keras.activations.relu
    assert tf_utils.get_activation(tf.nn.elu) is tf.nn.elu
    assert tf_utils.get_activation(None) is keras.activations.linear


def test_get_activation_can_return_a_layer():
    x = tf.constant([-1.0, 2.0])
    for name in ("relu", "identity", "swish", "relu6", "mish", "gelu"):
        layer = tf_utils.get_activation(name, use_keras_layer=True)
        assert isinstance(layer, keras.layers.Layer)
    layer = tf_utils.get_activation("leaky_relu", use_keras_layer=True, alpha=0.1)
    rounding.assert_close(layer(x), [-0.1, 2.0], roundings=4)


def test_get_shape_list_returns_numbers_for_known_and_tensors_for_unknown_sizes():
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def shape_of(x):
        batch, width = tf_utils.get_shape_list(x, expected_rank=[2, 3])
        assert width == 3
        return batch

    assert shape_of(tf.ones([5, 3])) == 5
    assert tf_utils.get_shape_list(tf.ones([5, 3])) == [5, 3]


def test_get_shape_list_raises_for_a_tensor_of_an_unexpected_rank():
    with pytest.raises(ValueError, match=r"tensor `x`, the actual tensor rank `1`"):
        tf_utils.get_shape_list(tf.ones([3]), expected_rank=2, name="x")


def test_safe_mean_of_an_empty_tensor_is_zero():
    assert tf_utils.safe_mean(tf.constant([1.0, 3.0])) == 2.0
    assert tf_utils.safe_mean(tf.zeros([0])) == 0.0


def test_cross_replica_concat_concatenates_the_tensors_of_all_replicas(two_replicas):
    @tf.function
    def step():
        part = tf.fill([1, 2], tf_utils.get_replica_id())
        return tf_utils.cross_replica_concat(part, axis=0)

    for value in two_replicas.run(step).values:
        np.testing.assert_array_equal(value, [[0, 0], [1, 1]])
    with two_replicas.scope():
        with pytest.raises(RuntimeError, match="replica context"):
            tf_utils.get_replica_id()
        with pytest.raises(RuntimeError, match="replica context"):
            tf_utils.cross_replica_concat(tf.ones([1]), axis=0)


def test_cloned_initializer_draws_different_numbers_than_the_original():
    initializer = keras.initializers.RandomNormal()
    clone = tf_utils.clone_initializer(initializer)
    assert type(clone) is type(initializer)
    assert np.any(np.array(clone([4])) != np.array(initializer([4])))
    assert tf_utils.clone_initializer("zeros") == "zeros"


@pytest.mark.parametrize(
    ("kind", "thing"),
    [
        ("layer", keras.layers.Dense(2)),
        ("initializer", keras.initializers.Ones()),
        ("regularizer", keras.regularizers.L2(0.1)),
        ("constraint", keras.constraints.NonNeg()),
        ("activation", keras.activations.relu),
    ],
)
def test_keras_restores_objects_serialized_by_tf_utils(kind, thing):
    config = getattr(tf_utils, f"serialize_{kind}")(thing, use_legacy_format=True)
    restored = getattr(keras, f"{kind}s").deserialize(config)
    assert type(restored) is type(thing)


def test_deserialize_keras_object_accepts_custom_objects_and_module_objects():
    class Mine(keras.layers.Layer): ...

    config = tf_utils.serialize_keras_object(Mine())
    for kwargs in ({"custom_objects": {"Mine": Mine}}, {"module_objects": {"Mine": Mine}}):
        assert isinstance(tf_utils.deserialize_keras_object(config, **kwargs), Mine)


def test_pack_and_unpack_inputs_return_the_inputs_with_a_deprecation_warning():
    with pytest.warns(DeprecationWarning, match="don't need packing"):
        packed = tf_utils.pack_inputs([tf.ones([2]), None])
    with pytest.warns(DeprecationWarning, match="don't need packing"):
        first, second = tf_utils.unpack_inputs(packed)
    assert first.shape == (2,)
    assert second is None
