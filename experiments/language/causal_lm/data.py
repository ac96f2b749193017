"""Batches of sequences from one long sequence of tokens."""

import numpy as np
import tensorflow as tf

from experiments.language.causal_lm import configs
from official_lite.common import errors
from official_lite.data import arrays, position

__all__ = ["NOT_COUNTED", "build_dataset", "evaluation_stretches"]

NOT_COUNTED = -1
"""The label of a token that is not predicted."""


def build_dataset(
    tokens: np.ndarray,
    seq_length: int,
    params: configs.CausalLmDataConfig,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of `(inputs, labels)`, int32 of shape (batch, seq_length).

    A label is the token that follows the input, or `NOT_COUNTED`.

    Args:
        tokens: The text, of any integer type.
        seq_length: The length of a sequence.
        params: Whether to train, and the batch size.
        input_context: The index of this input pipeline and the number of pipelines.

    Raises:
        DataError: If the text is too short.
    """
    if len(tokens) <= seq_length:
        raise errors.DataError(
            f"The {params.split} data have {len(tokens)} tokens; expected more than `seq_length`, "
            f"{seq_length}."
        )
    if params.is_training:
        return _random_stretches(tokens, seq_length, params, input_context)
    return arrays.from_arrays(
        evaluation_stretches(tokens, seq_length, params.eval_context),
        params.global_batch_size,
        shuffle=False,
        drop_remainder=params.drop_remainder,
        input_context=input_context,
    ).prefetch(2)


def evaluation_stretches(
    tokens: np.ndarray, seq_length: int, context: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels that cover a whole text, in rows of `seq_length` tokens.

    Each token but the first is predicted once, in a row that has at least `context` tokens before
    it, or all tokens before it if there are fewer.
    """
    if not 0 <= context < seq_length:
        raise errors.ConfigValueError(
            f"`eval_context` is {context}; expected less than `seq_length`, {seq_length}."
        )
    # The index of the last predicted token of each row; the last row ends with the text.
    ends = np.arange(seq_length, len(tokens) - 1, seq_length - context)
    ends = np.append(ends, len(tokens) - 1)
    predicted = (ends - seq_length + 1)[:, np.newaxis] + np.arange(seq_length)
    before = np.concatenate([[0], ends[:-1]])[:, np.newaxis]
    labels = np.where(predicted > before, tokens[predicted].astype(np.int32), NOT_COUNTED)
    return tokens[predicted - 1].astype(np.int32), labels


def _random_stretches(
    tokens: np.ndarray,
    seq_length: int,
    params: configs.CausalLmDataConfig,
    input_context: tf.distribute.InputContext | None,
) -> tf.data.Dataset:
    """Build batches of random sequences: one per epoch starts in each block of `seq_length` tokens.

    The positions depend only on the seed and the number of the batch.
    """
    firsts = arrays.from_arrays(
        seq_length * np.arange((len(tokens) - 1) // seq_length, dtype=np.int64),
        params.global_batch_size,
        shuffle=True,
        seed=params.seed,
        repeat=True,
        drop_remainder=params.drop_remainder,
        input_context=input_context,
    )
    # On a GPU, the text would have to be copied back to the CPU for every batch.
    with tf.device("CPU"):
        text = tf.convert_to_tensor(tokens)
    last = len(tokens) - 1 - seq_length

    def cut(seed: tf.Tensor, firsts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shifts = tf.random.stateless_uniform(
            tf.shape(firsts), seed, maxval=seq_length, dtype=tf.int64
        )
        begins = tf.minimum(firsts + shifts, last)
        rows = begins[:, tf.newaxis] + tf.range(seq_length + 1, dtype=tf.int64)
        stretches = tf.cast(tf.gather(text, rows), tf.int32)
        return stretches[:, :-1], stretches[:, 1:]

    return position.map_batches(firsts, cut, input_context, seed=params.seed).prefetch(2)
