import keras
import numpy as np
import tensorflow as tf

from official_lite import keras2


class Stack(keras2.Layer):
    def __init__(self):
        super().__init__()
        self.blocks = []
        self.heads = {"only": keras.layers.Dense(1)}

    def build(self, input_shape):
        self.blocks.extend(keras.layers.Dense(3) for _ in range(2))

    def call(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.heads["only"](inputs)


def test_checkpoint_holds_the_layers_in_lists_and_dictionaries(tmp_path) -> None:
    inputs = np.ones([1, 3], np.float32)
    stack, other = Stack(), Stack()
    expected = stack(inputs)
    path = tf.train.Checkpoint(model=stack).save(tmp_path / "ckpt")
    names = {name for name, _ in tf.train.list_variables(path)}
    assert "model/blocks/1/_kernel/.ATTRIBUTES/VARIABLE_VALUE" in names
    other(inputs)
    tf.train.Checkpoint(model=other).restore(path).assert_existing_objects_matched()
    np.testing.assert_array_equal(other(inputs), expected)


class Twice(keras2.Keras2Habits, keras.Model):
    """Subclass whose constructor is that of `keras.Model`."""


def test_saved_model_takes_and_returns_tensors_by_name(tmp_path) -> None:
    image = keras.Input([1], name="image")
    first, second = keras.layers.Rescaling(2.0, name="first"), keras.layers.ReLU(name="second")
    Twice(image, [first(image), second(image)]).save(tmp_path / "saved")
    serve = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
    outputs = serve(image=tf.constant([[-3.0]]))
    assert {name: float(value[0, 0]) for name, value in outputs.items()} == {
        "first": -6.0,
        "second": 0.0,
    }
