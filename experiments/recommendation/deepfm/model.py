"""DeepFM: what a factorization machine and deep layers say, added up."""

from typing import Any

import keras
import tensorflow as tf

from experiments.recommendation.criteo import generator
from experiments.recommendation.deepfm import configs

__all__ = ["FactorizationMachine", "build_model"]


@keras.saving.register_keras_serializable("recommendation")
class FactorizationMachine(keras.layers.Layer):
    """The sum of all weights, and of the dot products of each two vectors.

    From (batch, n, 1 + width), a weight and a vector for each of n fields, to (batch, 1).
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        weights, vectors = inputs[..., 0], inputs[..., 1:]
        squares_of_sum = keras.ops.square(keras.ops.sum(vectors, axis=1))
        sum_of_squares = keras.ops.sum(keras.ops.square(vectors), axis=1)
        pairs = 0.5 * keras.ops.sum(squares_of_sum - sum_of_squares, axis=1, keepdims=True)
        return keras.ops.sum(weights, axis=1, keepdims=True) + pairs

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return input_shape[0], 1


def build_model(config: configs.DeepFmModelConfig, num_rows: int) -> keras.Model:
    """From the features of `criteo.features` to logits of shape (batch, 1).

    Args:
        config: The layers.
        num_rows: Rows of the one table that has the embeddings of all categories.
    """
    layers = keras.layers
    integers = keras.Input((generator.NUM_INTEGERS,), name="integers")
    rows = keras.Input((generator.NUM_CATEGORIES,), dtype="int32", name="rows")
    # The weight and the vector of a field are looked up, and updated, at once.
    width = 1 + config.embedding_width
    embedded = layers.Embedding(num_rows, width, name="embeddings")(rows)
    # An integer's weight and vector are multiplied by it.
    scaled = layers.EinsumDense(
        "bi,iw->biw",
        (generator.NUM_INTEGERS, width),
        kernel_initializer="uniform",
        name="integer_embeddings",
    )(integers)
    fields = layers.Concatenate(axis=1)([scaled, embedded])
    x = layers.Flatten()(fields[:, :, 1:])
    for units in config.units:
        x = layers.Dense(units, activation="relu")(x)
        x = layers.Dropout(config.dropout_rate)(x)
    # In float32 under mixed precision too, as the loss is sensitive to it.
    deep = layers.Dense(1, dtype="float32", name="deep_logits")(x)
    shallow = FactorizationMachine(dtype="float32")(fields)
    logits = layers.Add(dtype="float32", name="logits")([deep, shallow])
    return keras.Model({"integers": integers, "rows": rows}, logits, name="deepfm")
