"""The models: each scores pairs of users and items in training, and all items afterwards."""

from typing import Any

import keras
import tensorflow as tf

from experiments.recommendation.ml100k import configs

__all__ = ["MatrixFactorization"]


class MatrixFactorization(keras.Model):
    """A model whose score of a user and an item is the dot product of their vectors.

    Args:
        config: The width of the vectors.
        num_users: The number of users.
        num_items: The number of items.
    """

    def __init__(self, config: configs.BprModelConfig, num_users: int, num_items: int) -> None:
        super().__init__(name="matrix_factorization")
        width = config.embedding_width
        self.users = keras.layers.Embedding(num_users, width, "glorot_normal", name="users")
        self.items = keras.layers.Embedding(num_items, width, "glorot_normal", name="items")

    def call(self, inputs: dict[str, Any], training: bool | None = None) -> tf.Tensor:
        """Return scores of shape (batch, n).

        Args:
            inputs: `user` of shape (batch,), and `items` of shape (batch, n).
            training: Without effect.
        """
        del training
        users, items = self.users(inputs["user"]), self.items(inputs["items"])
        return tf.reduce_sum(users[:, tf.newaxis] * items, axis=-1)

    def score_all(self, inputs: dict[str, Any]) -> tf.Tensor:
        """Return scores of all items, of shape (batch, items), for `user` of shape (batch,)."""
        items = self.items(tf.range(self.items.input_dim))
        return tf.matmul(self.users(inputs["user"]), items, transpose_b=True)
