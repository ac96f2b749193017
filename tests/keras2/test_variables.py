import keras
import pytest
import tensorflow as tf

from official_lite import keras2


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


def test_attribute_that_neither_variable_has_is_missing(variable: keras.Variable) -> None:
    assert not hasattr(variable, "no_such_attribute")


def test_stateless_call_of_an_embedding_uses_the_weights_that_it_is_given() -> None:
    embedding = keras.layers.Embedding(4, 2)
    embedding.build()
    rows, _ = embedding.stateless_call([tf.ones((4, 2))], [], tf.constant([1, 3]))
    assert rows.numpy().tolist() == [[1.0, 1.0], [1.0, 1.0]]
