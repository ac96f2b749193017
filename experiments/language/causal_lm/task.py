"""The task of predicting the next token."""

import abc
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.language.causal_lm import data, model
from official_lite.common import errors
from official_lite.core import base_task

__all__ = ["BitsPerToken", "CausalLmTask", "mean_cross_entropy"]


class CausalLmTask(base_task.Task):
    """A task that predicts the next token. A subclass defines what the tokens are."""

    # The name of the bits-per-token metric in evaluations; an empty name omits the metric.
    bits_name = ""

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Return the number of different tokens."""

    @abc.abstractmethod
    def load_tokens(self, params: Any) -> np.ndarray:
        """Return the text that a `CausalLmDataConfig` describes, as tokens."""

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return a text as tokens."""

    @abc.abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Return tokens as text, the inverse of `encode`."""

    def build_model(self) -> keras.Model:
        config = self.task_config.model
        if config.vocab_size and config.vocab_size < self.vocab_size:
            raise errors.ConfigValueError(
                f"`model.vocab_size` is {config.vocab_size}, but the tokenizer has "
                f"{self.vocab_size} tokens. Set it to at least that number, or to 0."
            )
        return model.build_model(config, config.vocab_size or self.vocab_size)

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        tokens = self.load_tokens(params)
        return data.build_dataset(tokens, self.task_config.model.seq_length, params, input_context)

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        loss = mean_cross_entropy(labels, model_outputs)
        return loss + super().build_losses(labels, model_outputs, aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        if training or not self.bits_name:
            return []
        return [BitsPerToken(name=self.bits_name)]


def mean_cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the mean cross-entropy in nats over all labels but `NOT_COUNTED`, or 0 without any."""
    losses, counts = _cross_entropy(labels, logits)
    return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(counts))


class BitsPerToken(keras.metrics.Mean):
    """The cross-entropy in bits, averaged over counted labels rather than over batches."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        losses, counts = _cross_entropy(y_true, y_pred)
        # `_cross_entropy` has already set the losses of uncounted labels to 0.
        super().update_state(losses / math.log(2), sample_weight=counts)


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the cross-entropy of each label in nats, and its weight: 0 for `NOT_COUNTED`, else 1.

    The cross-entropy of `NOT_COUNTED` is 0.
    """
    counts = tf.cast(labels != data.NOT_COUNTED, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
    return losses * counts, counts
