"""The deep learning recommendation model, which multiplies embeddings in pairs."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.recommendation.criteo import generator
from experiments.recommendation.dlrm import configs

__all__ = ["PairwiseProducts", "build_model"]


@keras.saving.register_keras_serializable("recommendation")
class PairwiseProducts(keras.layers.Layer):
    """A layer of dot products of all pairs of vectors: (batch, n, width) to (batch, n(n - 1)/2)."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        count = inputs.shape[1]
        products = keras.ops.matmul(inputs, keras.ops.swapaxes(inputs, 1, 2))
        rows, columns = np.tril_indices(count, -1)
        products = keras.ops.reshape(products, (-1, count * count))
        return keras.ops.take(products, rows * count + columns, axis=1)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        batch, count, _ = input_shape
        return batch, count * (count - 1) // 2


def build_model(config: configs.DlrmModelConfig, num_rows: int) -> keras.Model:
    """Build a model from the features of `criteo.features` to logits of shape (batch, 1).

    Args:
        config: The layers.
        num_rows: The number of rows of the single table for the embeddings of all categories.
    """
    layers = keras.layers
    integers = x = keras.Input((generator.NUM_INTEGERS,), name="integers")
    for units in (*config.bottom_units, config.embedding_width):
        x = layers.Dense(units, activation="relu")(x)
    rows = keras.Input((generator.NUM_CATEGORIES,), dtype="int32", name="rows")
    embedded = layers.Embedding(num_rows, config.embedding_width, name="embeddings")(rows)
    vectors = layers.Concatenate(axis=1)([layers.Reshape((1, -1))(x), embedded])
    x = layers.Concatenate()([x, PairwiseProducts()(vectors)])
    for units in config.top_units:
        x = layers.Dense(units, activation="relu")(x)
    # Logits are float32 even under mixed precision, because the loss is sensitive to rounding.
    logits = layers.Dense(1, dtype="float32", name="logits")(x)
    return keras.Model({"integers": integers, "rows": rows}, logits, name="dlrm")
