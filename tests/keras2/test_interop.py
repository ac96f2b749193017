"""TensorFlow functions can be used in functional models, as in Keras 2."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import keras2
from official_lite.keras2 import interop
from tests import rounding

interop.accept_symbolic_tensors()

FUNCTIONS = {
    "of one tensor": lambda x: tf.math.softmax(x, name="a/b"),
    "of a list": lambda x: tf.concat([x, 2 * x, tf.zeros_like(x)], axis=-1),
    "to a list": lambda x: tf.add_n(tf.unstack(tf.transpose(x, [1, 0, 2]))),
    "by keyword": lambda x: tf.matmul(a=x, b=x, transpose_b=True),
    "with a tensor": lambda x: tf.add(x, tf.constant([1.0, 2.0, 3.0])),
    "of a shape": lambda x: tf.reshape(x, [tf.shape(x)[0], 12]),
    "of an unknown size": lambda x: tf.squeeze(x[:, 0:1, :], axis=1),
    "to integers": lambda x: tf.one_hot(tf.argmax(x, axis=-1), 3),
    "of a structure": lambda x: tf.nest.map_structure(tf.square, {"x": x})["x"],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tensorflow_function_in_a_functional_model_gives_the_same_result_as_on_tensors(
    name: str,
) -> None:
    function = FUNCTIONS[name]
    tensor = keras.Input((4, 3))
    inputs = tf.random.stateless_normal([2, 4, 3], seed=[1, 2])
    model = keras.Model(tensor, function(tensor))
    rounding.assert_close(model(inputs), function(inputs), roundings=4 * 3)


def test_gradients_flow_through_tensorflow_functions_in_a_functional_model() -> None:
    tensor = keras.Input((3,))
    model = keras.Model(tensor, tf.reduce_sum(keras.layers.Dense(2)(tensor), axis=-1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones([1, 3])))
    gradients = tape.gradient(loss, model.trainable_variables)
    np.testing.assert_array_equal(gradients[0], np.ones((3, 2)))


def test_tensorflow_errors_unrelated_to_symbolic_tensors_are_raised_unchanged() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="size-incompatible"):
        tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))


@pytest.fixture
def variable() -> keras.Variable:
    layer = keras2.Layer()
    return layer.add_weight("scale", [2], initializer="ones")


def test_keras_variable_has_the_attributes_of_its_tensorflow_variable(
    variable: keras.Variable,
) -> None:
    assert variable.ref() == variable.value.ref()
    update = tf.IndexedSlices(tf.constant([2.0]), tf.constant([1]))
    variable.scatter_add(update)
    assert variable.numpy().tolist() == [1.0, 3.0]


def test_hasattr_of_a_keras_variable_is_false_for_an_unknown_attribute(
    variable: keras.Variable,
) -> None:
    assert not hasattr(variable, "no_such_attribute")


def test_stateless_embedding_call_uses_the_weights_passed_to_it() -> None:
    embedding = keras.layers.Embedding(4, 2)
    embedding.build()
    rows, _ = embedding.stateless_call([tf.ones((4, 2))], [], tf.constant([1, 3]))
    assert rows.numpy().tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_hard_sigmoid_of_keras_2_is_preserved_when_its_layer_is_rebuilt_from_its_config() -> None:
    activation = keras.layers.Activation(keras2.backend.hard_sigmoid)
    x = tf.constant([-4.0, 1.0, 4.0])
    layers = [activation, keras.layers.Activation.from_config(activation.get_config())]
    for layer in layers:
        rounding.assert_close(layer(x), [0.0, 0.7, 1.0], roundings=2)
    wrapped = keras.layers.LSTM(1, recurrent_activation=keras2.backend.hard_sigmoid)
    backward = keras.layers.Bidirectional(wrapped).backward_layer
    assert backward.recurrent_activation is keras2.backend.hard_sigmoid


def test_keras_backend_functions_accept_tensors_and_symbolic_tensors() -> None:
    x, w = keras.Input((2,)), tf.ones([2, 3])
    model = keras.Model(x, keras2.backend.expand_dims(keras2.backend.dot(x, w)))
    assert model(tf.ones([4, 2])).shape == (4, 3, 1)
    assert keras2.backend.concatenate([w, w]).shape == (2, 6)
