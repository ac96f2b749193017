"""DeepFM: the sum of the logits of a factorization machine and of deep layers."""

from typing import Any

import keras
import tensorflow as tf

from experiments.recommendation.criteo import generator
from experiments.recommendation.deepfm import configs

__all__ = ["FactorizationMachine", "build_model"]


@keras.saving.register_keras_serializable("recommendation")
class FactorizationMachine(keras.layers.Layer):
    """A layer that sums all weights and the dot products of all pairs of vectors.

    Maps (batch, n, 1 + width), a weight and a vector for each of n fields, to (batch, 1).
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
    """Build a model from the features of `criteo.features` to logits of shape (batch, 1).

    Args:
        config: The layers.
        num_rows: The number of rows of the single table for the embeddings of all categories.
    """
    layers = keras.layers
    integers = keras.Input((generator.NUM_INTEGERS,), name="integers")
    rows = keras.Input((generator.NUM_CATEGORIES,), dtype="int32", name="rows")
    # The weight and the vector of a field share a row, so one lookup and one update serve both.
    width = 1 + config.embedding_width
    embedded = layers.Embedding(num_rows, width, name="embeddings")(rows)
    # The weight and the vector of an integer field are multiplied by the integer.
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
    # Logits are float32 even under mixed precision, because the loss is sensitive to rounding.
    deep = layers.Dense(1, dtype="float32", name="deep_logits")(x)
    shallow = FactorizationMachine(dtype="float32")(fields)
    logits = layers.Add(dtype="float32", name="logits")([deep, shallow])
    return keras.Model({"integers": integers, "rows": rows}, logits, name="deepfm")
