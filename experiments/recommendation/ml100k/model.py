"""The models: each scores pairs of users and items in training, and all items afterwards."""

from typing import Any

import keras
import tensorflow as tf

from experiments.language.transformer import layers
from experiments.recommendation.ml100k import configs, data

__all__ = ["MatrixFactorization", "SelfAttentiveModel", "TwoTower"]


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


class TwoTower(keras.Model):
    """A model whose score is the cosine of the outputs of two networks, times a scale.

    One network sees the id and the features of a user, the other one those of an item, so the
    vectors of items can be computed in advance and searched.

    Args:
        config: The layers.
        users: The id and the features of each user.
        items: The id and the features of each item.
    """

    def __init__(
        self, config: configs.TwoTowerModelConfig, users: data.Features, items: data.Features
    ) -> None:
        super().__init__(name="two_tower")
        self._temperature = config.temperature
        self.user_tower = _Tower(config, users, name="user_tower")
        self.item_tower = _Tower(config, items, name="item_tower")

    def call(self, inputs: dict[str, Any], training: bool | None = None) -> tf.Tensor:
        """Return scores of each user and each item of the batch, of shape (batch, batch).

        Args:
            inputs: `user` and `item`, both of shape (batch,).
            training: Whether to apply dropout.
        """
        users = self.user_tower(inputs["user"], training=training)
        items = self.item_tower(inputs["item"], training=training)
        return tf.matmul(users, items, transpose_b=True) / self._temperature

    def score_all(self, inputs: dict[str, Any]) -> tf.Tensor:
        """Return scores of all items, of shape (batch, items), for `user` of shape (batch,)."""
        users = self.user_tower(inputs["user"], training=False)
        items = self.item_tower(tf.range(self.item_tower.count), training=False)
        return tf.matmul(users, items, transpose_b=True) / self._temperature


class _Tower(keras.layers.Layer):
    """A network that maps the indices of users or items to vectors of length 1."""

    def __init__(
        self, config: configs.TwoTowerModelConfig, features: data.Features, name: str
    ) -> None:
        super().__init__(name=name)
        self.count = len(features.values)
        self._values = features.values
        width = config.embedding_width
        self.ids = keras.layers.Embedding(self.count, width, name="ids")
        self.features = keras.layers.Embedding(features.num_values, width, name="features")
        self.hidden = [keras.layers.Dense(units, activation="relu") for units in config.units]
        self.dropout = keras.layers.Dropout(config.dropout_rate)
        self.vectors = keras.layers.Dense(width, name="vectors")

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        values = tf.gather(self._values, inputs)
        # The value 0 means that the feature is missing.
        is_given = tf.cast(values[..., tf.newaxis] > 0, self.compute_dtype)
        of_features = tf.reduce_sum(self.features(values) * is_given, axis=1)
        x = tf.concat([self.ids(inputs), of_features], axis=-1)
        for layer in self.hidden:
            x = self.dropout(layer(x), training=training)
        return tf.math.l2_normalize(self.vectors(x), axis=-1)


class SelfAttentiveModel(keras.Model):
    """A causal Transformer on the items of a user in the order of time.

    Items are numbered from 1 here; 0 is padding.

    Args:
        config: The layers.
        num_items: The number of items.
    """

    def __init__(self, config: configs.SasRecModelConfig, num_items: int) -> None:
        super().__init__(name="sasrec")
        stddev = config.initializer_range
        self.embedding = keras.layers.ReversibleEmbedding(
            1 + num_items,
            config.hidden_size,
            embeddings_initializer=layers.normal(stddev),
            reverse_dtype="float32",
            name="embedding",
        )
        history = keras.Input((config.seq_length,), dtype="int32", name="history")
        x = self.embedding(history)
        x = x + layers.PositionEmbedding(config.seq_length, stddev, name="positions")(x)
        x = keras.layers.LayerNormalization(epsilon=config.layer_norm_epsilon, name="norm")(x)
        x = layers.dropout(x, config.dropout_rate)
        for index in range(config.num_layers):
            x = layers.block(
                x,
                config,
                f"block_{index}",
                is_causal=True,
                norm_first=False,
                residual_stddev=stddev,
                visible=keras.ops.not_equal(history, 0),
            )
        self.encoder = keras.Model(history, x, name="encoder")

    def call(self, inputs: dict[str, Any], training: bool | None = None) -> tf.Tensor:
        """Return logits of the next item at each position.

        Args:
            inputs: `history` of shape (batch, `seq_length`).
            training: Whether to apply dropout.

        Returns:
            float32 of shape (batch, `seq_length`, 1 + items).
        """
        encoded = self.encoder(inputs["history"], training=training)
        return self.embedding(encoded, reverse=True)

    def score_all(self, inputs: dict[str, Any]) -> tf.Tensor:
        """Return scores of all items, of shape (batch, items), to follow `history`."""
        last = self.encoder(inputs["history"], training=False)[:, -1]
        return self.embedding(last, reverse=True)[:, 1:]
