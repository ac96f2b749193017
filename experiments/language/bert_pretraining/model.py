"""BERT: a bidirectional encoder and its pre-training heads."""

from typing import Any

import keras
from keras import ops

from experiments.language.bert_pretraining import configs
from experiments.language.transformer import layers
from official_lite.modeling import tf_utils

__all__ = ["Bias", "build_model"]


@keras.saving.register_keras_serializable("language")
class Bias(keras.layers.Layer):
    """A layer that adds a learned number to each element of the last axis."""

    def build(self, input_shape: tuple[Any, ...]) -> None:
        self.bias = self.add_weight(shape=(input_shape[-1],), initializer="zeros", name="bias")

    def call(self, inputs: Any) -> Any:
        return inputs + self.bias


def build_model(
    config: configs.PretrainerConfig, seq_length: int, max_predictions_per_seq: int
) -> keras.Model:
    """Build a model from features to `mlm_logits` and one output per head.

    `mlm_logits` has the shape (batch, predictions, vocabulary). The logits of a head have the
    shape (batch, classes) and are returned under its name.

    Args:
        config: The layers.
        seq_length: The number of tokens of an example.
        max_predictions_per_seq: The number of positions at which a word is predicted.
    """
    encoder = config.encoder.get()
    words = keras.Input((seq_length,), dtype="int32", name="input_word_ids")
    mask = keras.Input((seq_length,), dtype="int32", name="input_mask")
    types = keras.Input((seq_length,), dtype="int32", name="input_type_ids")
    places = keras.Input((max_predictions_per_seq,), dtype="int32", name="masked_lm_positions")
    embedding = keras.layers.ReversibleEmbedding(
        encoder.vocab_size,
        encoder.hidden_size,
        embeddings_initializer=layers.normal(encoder.initializer_range),
        # Logits are float32 even under mixed precision, because the loss is sensitive to rounding.
        reverse_dtype="float32",
        name="word_embeddings",
    )
    x = _encode(encoder, embedding(words), mask, types)
    guessed = ops.take_along_axis(x, places[..., None], axis=1)
    guessed = keras.layers.Dense(
        encoder.hidden_size,
        activation=tf_utils.get_activation(config.mlm_activation),
        kernel_initializer=layers.normal(config.mlm_initializer_range),
        name="mlm_dense",
    )(guessed)
    guessed = _norm(encoder, "mlm_norm")(guessed)
    bias = Bias(dtype="float32", name="mlm_logits")
    outputs = {"mlm_logits": bias(embedding(guessed, reverse=True))}
    for index, head in enumerate(config.cls_heads):
        name = head.name or f"cls_{index}"
        outputs[name] = _classify(head, name, x, encoder.initializer_range)
    inputs = [words, mask, types, places]
    return keras.Model({tensor.name: tensor for tensor in inputs}, outputs, name="bert")


def _encode(config: configs.BertEncoderConfig, x: Any, mask: Any, types: Any) -> Any:
    stddev = config.initializer_range
    positions = layers.PositionEmbedding(
        config.max_position_embeddings, stddev, name="position_embeddings"
    )
    of_types = keras.layers.Embedding(
        config.type_vocab_size,
        config.hidden_size,
        embeddings_initializer=layers.normal(stddev),
        name="type_embeddings",
    )
    x = x + positions(x) + of_types(types)
    x = layers.dropout(_norm(config, "embeddings_norm")(x), config.dropout_rate)
    for index in range(config.num_layers):
        x = layers.block(
            x,
            config,
            f"block_{index}",
            is_causal=False,
            norm_first=config.norm_first,
            residual_stddev=stddev,
            visible=mask,
        )
    return _norm(config, "output_norm")(x) if config.norm_first else x


def _classify(head: configs.ClsHeadConfig, name: str, x: Any, stddev: float) -> Any:
    x = x[:, head.cls_token_idx]
    if head.inner_dim:
        x = keras.layers.Dense(
            head.inner_dim,
            activation=head.activation,
            kernel_initializer=layers.normal(stddev),
            name=f"{name}_pooler",
        )(x)
    x = layers.dropout(x, head.dropout_rate)
    logits = keras.layers.Dense(
        head.num_classes, dtype="float32", kernel_initializer=layers.normal(stddev), name=name
    )
    return logits(x)


def _norm(config: configs.BertEncoderConfig, name: str) -> keras.layers.Layer:
    return keras.layers.LayerNormalization(epsilon=config.layer_norm_epsilon, name=name)
