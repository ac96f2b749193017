"""Learning to predict the next token."""

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
    """From tokens to the next ones. A subclass says what the tokens are."""

    # Under which evaluation reports the bits that a token costs; empty leaves it out.
    bits_name = ""

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """How many different tokens there are."""

    @abc.abstractmethod
    def load_tokens(self, split: str) -> np.ndarray:
        """The text of a split, `train` or `validation`, as tokens."""

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """A text as tokens."""

    @abc.abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """The inverse of `encode`."""

    def build_model(self) -> keras.Model:
        config = self.task_config.model
        if config.vocab_size and config.vocab_size < self.vocab_size:
            raise errors.ConfigValueError(
                f"`model.vocab_size` is {config.vocab_size}, and there are {self.vocab_size} "
                "tokens; wanted as many or more, or 0."
            )
        return model.build_model(config, config.vocab_size or self.vocab_size)

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        tokens = self.load_tokens(params.split)
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
    """The mean over the labels that count, in nats; 0 if none does."""
    losses, counts = _cross_entropy(labels, logits)
    return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(counts))


class BitsPerToken(keras.metrics.Mean):
    """The mean over all labels that count, whatever the batches, in bits."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        losses, counts = _cross_entropy(y_true, y_pred)
        # What does not count has a loss of 0 already.
        super().update_state(losses / math.log(2), sample_weight=counts)


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Nats of each label, and 1 for each that counts; both 0 for the others."""
    counts = tf.cast(labels != data.NOT_COUNTED, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
    return losses * counts, counts
