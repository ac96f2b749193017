"""Transformer layers that Keras lacks, and blocks built from them and dense layers."""

from typing import Any

import keras
import numpy as np
from keras import ops

from official_lite.modeling import tf_utils

__all__ = ["Attention", "PositionEmbedding", "block", "dropout", "normal"]


def normal(stddev: float) -> keras.initializers.Initializer:
    """Return a new initializer, because a shared one would give several weights the same values."""
    return keras.initializers.RandomNormal(stddev=stddev)


def dropout(x: Any, rate: float) -> Any:
    """Return `x` with dropout during training, or `x` itself if the rate is 0."""
    return keras.layers.Dropout(rate)(x) if rate else x


@keras.saving.register_keras_serializable("language")
class PositionEmbedding(keras.layers.Layer):
    """A learned vector for each of the first positions: (batch, time, width) to (time, width).

    Args:
        max_length: The number of positions that have a vector.
        stddev: The standard deviation of the initial values.
        **kwargs: The arguments of `keras.layers.Layer`.
    """

    def __init__(self, max_length: int, stddev: float = 0.02, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_length = max_length
        self.stddev = stddev

    def build(self, input_shape: tuple[Any, ...]) -> None:
        self.embeddings = self.add_weight(
            shape=(self.max_length, input_shape[-1]),
            initializer=normal(self.stddev),
            name="embeddings",
        )

    def call(self, inputs: Any) -> Any:
        return self.embeddings[: ops.shape(inputs)[1]]

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(input_shape[1:])

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        return config | {"max_length": self.max_length, "stddev": self.stddev}


@keras.saving.register_keras_serializable("language")
class Attention(keras.layers.Layer):
    """Multi-head attention without weights of its own.

    Called with queries, keys and values side by side, (batch, time, 3 × width), and, unless all
    positions are visible, a mask of shape (batch, time) that is true where there is a token.

    Args:
        num_heads: The number of heads, which share the width.
        is_causal: Whether a position attends only to itself and earlier positions.
        is_rotary: Whether queries and keys are rotated by their position, so that attention
            depends on the distance between two positions (https://arxiv.org/abs/2104.09864).
        dropout_rate: The dropout rate of the attention weights.
        **kwargs: The arguments of `keras.layers.Layer`.
    """

    def __init__(
        self,
        num_heads: int,
        is_causal: bool,
        is_rotary: bool = False,
        dropout_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.is_causal = is_causal
        self.is_rotary = is_rotary
        self.dropout_rate = dropout_rate
        self._dropout = keras.layers.Dropout(dropout_rate) if dropout_rate else None

    def call(self, inputs: Any, visible: Any = None, training: bool = False) -> Any:
        _, length, width = inputs.shape
        d_head = width // 3 // self.num_heads
        heads = ops.reshape(inputs, (-1, length, 3, self.num_heads, d_head))
        query, key, value = ops.unstack(ops.transpose(heads, (2, 0, 3, 1, 4)), 3)
        if self.is_rotary:
            query, key = _turn(query), _turn(key)
        scores = ops.matmul(query * d_head**-0.5, ops.swapaxes(key, 2, 3))
        # The softmax sums over many positions, so it uses float32 even under mixed precision.
        weights = ops.softmax(self._hide(ops.cast(scores, "float32"), visible))
        weights = ops.cast(weights, self.compute_dtype)
        if self._dropout is not None:
            weights = self._dropout(weights, training=training)
        attended = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))
        return ops.reshape(attended, (-1, length, width // 3))

    def _hide(self, scores: Any, visible: Any) -> Any:
        """Lower scores of shape (batch, heads, time, time) to -1e9 at invisible positions."""
        hidden = -1e9
        if self.is_causal:
            length = scores.shape[-1]
            scores = ops.where(np.tril(np.ones((length, length), bool)), scores, hidden)
        if visible is not None:
            scores = ops.where(ops.cast(visible, "bool")[:, None, None, :], scores, hidden)
        return scores

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        return config | {
            "num_heads": self.num_heads,
            "is_causal": self.is_causal,
            "is_rotary": self.is_rotary,
            "dropout_rate": self.dropout_rate,
        }


def _turn(x: Any) -> Any:
    """Rotate pairs of elements of x (…, time, width) by angles proportional to the position.

    Each element of the first half of the width forms a pair with one of the second half.
    """
    _, _, length, width = x.shape
    frequencies = 10_000.0 ** -(np.arange(width // 2) / (width // 2))
    angles = np.arange(length)[:, np.newaxis] * frequencies
    cosine = np.concatenate([np.cos(angles), np.cos(angles)], axis=-1)
    sine = np.concatenate([-np.sin(angles), np.sin(angles)], axis=-1)
    swapped = ops.roll(x, width // 2, axis=-1)
    return x * ops.cast(cosine, x.dtype) + swapped * ops.cast(sine, x.dtype)


def block(
    x: Any,
    config: Any,
    name: str,
    *,
    is_causal: bool,
    norm_first: bool,
    residual_stddev: float,
    is_rotary: bool = False,
    visible: Any = None,
) -> Any:
    """Apply attention and two dense layers per position, each with a residual connection.

    Args:
        x: A tensor of shape (batch, time, `config.hidden_size`).
        config: A `GptModelConfig` or a `BertEncoderConfig`.
        name: The prefix of the names of the layers.
        is_causal: Whether a position attends only to itself and earlier positions.
        norm_first: Whether the input of a part is normalized, instead of the sum at its end.
        residual_stddev: The standard deviation of the initial weights of the layers whose output is
            added to their input.
        is_rotary: Whether attention uses rotary positions.
        visible: True where there is a token, of shape (batch, time).
    """
    stddev, use_bias = config.initializer_range, config.use_bias

    def dense(units: int, part: str, stddev: float, activation: Any = None) -> Any:
        return keras.layers.Dense(
            units,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=normal(stddev),
            name=f"{name}_{part}",
        )

    def attend(x: Any) -> Any:
        qkv = dense(3 * config.hidden_size, "qkv", stddev)(x)
        attention = Attention(
            config.num_attention_heads,
            is_causal,
            is_rotary,
            config.attention_dropout_rate,
            name=f"{name}_attention",
        )
        return dense(config.hidden_size, "project", residual_stddev)(attention(qkv, visible))

    def feed_forward(x: Any) -> Any:
        activation = tf_utils.get_activation(config.hidden_activation)
        x = dense(config.intermediate_size, "up", stddev, activation)(x)
        return dense(config.hidden_size, "down", residual_stddev)(x)

    for part, layer in (("attention", attend), ("feed_forward", feed_forward)):
        norm = keras.layers.LayerNormalization(
            epsilon=config.layer_norm_epsilon, center=use_bias, name=f"{name}_{part}_norm"
        )
        if norm_first:
            x = x + dropout(layer(norm(x)), config.dropout_rate)
        else:
            x = norm(x + dropout(layer(x), config.dropout_rate))
    return x
