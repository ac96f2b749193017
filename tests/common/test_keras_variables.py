import keras
import tensorflow as tf

from official_lite.common import keras_variables


def test_variable_path_and_tensorflow_variable_are_found_for_keras_and_tensorflow_variables() -> (
    None
):
    layer = keras.layers.Dense(2, name="out")
    layer.build((1, 3))
    plain = tf.Variable([1.0], name="plain")
    assert keras_variables.path_of(layer.kernel) == "out/kernel"
    assert keras_variables.path_of(plain) == "plain:0"
    assert keras_variables.raw(layer.kernel) is layer.kernel.value
    assert keras_variables.raw(plain) is plain
    assert [*keras_variables.local_values(layer.kernel)] == [layer.kernel.value]


def test_local_values_returns_one_copy_of_a_variable_per_replica() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = keras.Variable([1.0])
    copies = keras_variables.local_values(variable)
    assert len(copies) == 2
    assert all(copy.numpy() == [1.0] for copy in copies)
