"""Small models that tests can train and export instead of real ones."""

import keras
import tensorflow as tf

__all__ = ["FakeKerasModel", "FakeModule"]


class FakeKerasModel(keras.Model):
    """Keras model of two dense layers with four units, for inputs of shape `[batch, features]`."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(4, activation="relu")
        self.dense2 = keras.layers.Dense(4, activation="relu")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.dense2(self.dense(inputs))


class FakeModule(tf.Module):
    """The same network as a plain `tf.Module`, for inputs with `input_size` features."""

    def __init__(self, input_size: int, name: str | None = None) -> None:
        super().__init__(name=name)
        with self.name_scope:
            self.dense = _Dense(input_size, 4, name="dense")
            self.dense2 = _Dense(4, 4, name="dense_1")

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.dense2(self.dense(inputs))


class _Dense(tf.Module):
    def __init__(self, input_size: int, output_size: int, name: str) -> None:
        super().__init__(name=name)
        with self.name_scope:
            self.w = tf.Variable(tf.random.normal([input_size, output_size]), name="w")
            self.b = tf.Variable(tf.zeros([output_size]), name="b")

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.matmul(inputs, self.w) + self.b)
