import keras
import tensorflow as tf

from official_lite import keras2


def test_functions_work_on_tensors_and_symbolic_tensors() -> None:
    x, w = keras.Input((2,)), tf.ones([2, 3])
    model = keras.Model(x, keras2.backend.expand_dims(keras2.backend.dot(x, w)))
    assert model(tf.ones([4, 2])).shape == (4, 3, 1)
    assert keras2.backend.concatenate([w, w]).shape == (2, 6)
