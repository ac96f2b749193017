"""A GPT: causal blocks between a token embedding and an output layer tied to it."""

from typing import Any

import keras
from keras import ops

from experiments.language.causal_lm import configs
from experiments.language.transformer import layers

__all__ = ["NgramRows", "build_model"]

# The factor is below 2**15, so that its products with row numbers fit into an int32.
_MULTIPLIER = 31337


@keras.saving.register_keras_serializable("language")
class NgramRows(keras.layers.Layer):
    """A layer that returns table rows for the n-grams that end at each position.

    Maps (batch, time) to (batch, time, sizes). Equal n-grams share a row; different n-grams mostly
    have different rows. The idea of adding n-grams to a byte's embedding is from
    https://arxiv.org/abs/2412.09871.

    Args:
        sizes: The values of n.
        num_rows: The number of rows for each n; at most 65,536.
        **kwargs: The arguments of `keras.layers.Layer`.
    """

    def __init__(self, sizes: tuple[int, ...], num_rows: int, **kwargs: Any) -> None:
        super().__init__(dtype="int32", **kwargs)
        self.sizes = tuple(sizes)
        self.num_rows = num_rows

    def build(self, input_shape: tuple[Any, ...]) -> None:
        del input_shape

    def call(self, inputs: Any) -> Any:
        hashed = ops.zeros_like(inputs)
        rows = {}
        for size in range(1, max(self.sizes) + 1):
            # Positions before the first token are treated as token 0.
            oldest = ops.pad(inputs, ((0, 0), (size - 1, 0)))[:, : inputs.shape[1]]
            hashed = ops.mod(hashed * _MULTIPLIER + oldest + 1, self.num_rows)
            rows[size] = hashed
        stacked = ops.stack([rows[size] for size in self.sizes], axis=-1)
        return stacked + self.num_rows * ops.arange(len(self.sizes), dtype="int32")

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*input_shape, len(self.sizes))

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        del config["dtype"]
        return config | {"sizes": self.sizes, "num_rows": self.num_rows}


def build_model(config: configs.GptModelConfig, vocab_size: int) -> keras.Model:
    """Build a model from tokens (batch, `seq_length`) to logits (…, `seq_length`, `vocab_size`).

    Args:
        config: The layers.
        vocab_size: The number of tokens.
    """
    config = config.replace(intermediate_size=config.intermediate_size or 4 * config.hidden_size)
    tokens = keras.Input((config.seq_length,), dtype="int32", name="tokens")
    embedding = keras.layers.ReversibleEmbedding(
        vocab_size,
        config.hidden_size,
        embeddings_initializer=layers.normal(config.initializer_range),
        # Logits are float32 even under mixed precision, because the loss is sensitive to rounding.
        reverse_dtype="float32",
        name="embedding",
    )
    x = embedding(tokens)
    is_rotary = config.positions == "rotary"
    if not is_rotary:
        positions = layers.PositionEmbedding(
            config.seq_length, config.initializer_range, name="position_embedding"
        )
        x = x + positions(x)
    if config.ngram_sizes:
        x = x + _embed_ngrams(tokens, config)
    x = layers.dropout(x, config.dropout_rate)
    for index in range(config.num_layers):
        x = layers.block(
            x,
            config,
            f"block_{index}",
            is_causal=True,
            norm_first=True,
            is_rotary=is_rotary,
            # Each block adds twice to the residual stream, so there are `2 * num_layers` sums.
            residual_stddev=config.initializer_range / (2 * config.num_layers) ** 0.5,
        )
    norm = keras.layers.LayerNormalization(
        epsilon=config.layer_norm_epsilon, center=config.use_bias, name="norm"
    )
    return keras.Model(tokens, embedding(norm(x), reverse=True), name="gpt")


def _embed_ngrams(tokens: Any, config: configs.GptModelConfig) -> Any:
    num_sizes = len(config.ngram_sizes)
    rows = NgramRows(config.ngram_sizes, config.ngram_rows, name="ngram_rows")(tokens)
    table = keras.layers.Embedding(
        num_sizes * config.ngram_rows,
        config.hidden_size,
        # An n-gram that does not occur in the training data must contribute nothing.
        embeddings_initializer="zeros",
        name="ngram_embedding",
    )
    return ops.sum(table(rows), axis=2)
