"""The task of predicting masked words and whether one text follows another."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from experiments.language.bert_pretraining import data, model
from official_lite.common import errors
from official_lite.core import base_task, step_metrics

__all__ = ["MaskedLMTask"]

_NEXT_SENTENCE = "next_sentence"


class MaskedLMTask(base_task.Task):
    """A task that predicts the masked words in two parts of text."""

    def build_model(self) -> keras.Model:
        config = self.task_config
        params = config.train_data
        longest = config.model.encoder.get().max_position_embeddings
        if params.seq_length > longest:
            raise errors.ConfigValueError(
                f"`train_data.seq_length` is {params.seq_length}; expected at most "
                f"`max_position_embeddings`, {longest}."
            )
        validation = config.validation_data
        if validation is not None and _sizes(validation) != _sizes(params):
            raise errors.ConfigValueError(
                "`seq_length` and `max_predictions_per_seq` are "
                f"{_sizes(params)} in `train_data`, but {_sizes(validation)} in `validation_data`. "
                "Set both fields to the same values."
            )
        return model.build_model(config.model, *_sizes(params))

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        if params.file_type == "tfrecord":
            return data.read_records(params, input_context)
        vocab_size = self.task_config.model.encoder.get().vocab_size
        return data.read_text(params, self.task_config.tokenizer_path, vocab_size, input_context)

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        loss = _masked_lm_loss(labels, model_outputs)
        if "next_sentence_labels" in labels:
            loss += _next_sentence_loss(labels, model_outputs)
        return loss + super().build_losses(labels, model_outputs, aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        metrics: list[keras.metrics.Metric] = [
            keras.metrics.SparseCategoricalAccuracy(name="masked_lm_accuracy"),
            step_metrics.BatchMean(name="lm_example_loss"),
        ]
        if self.task_config.train_data.use_next_sentence_label:
            metrics += [
                keras.metrics.SparseCategoricalAccuracy(name="next_sentence_accuracy"),
                step_metrics.BatchMean(name="next_sentence_loss"),
            ]
        return metrics

    def process_metrics(
        self,
        metrics: Sequence[keras.metrics.Metric],
        labels: Any,
        model_outputs: Any,
        **kwargs: Any,
    ) -> None:
        by_name = {metric.name: metric for metric in metrics}
        by_name["masked_lm_accuracy"].update_state(
            labels["masked_lm_ids"], model_outputs["mlm_logits"], labels["masked_lm_weights"]
        )
        by_name["lm_example_loss"].update_state(
            _masked_lm_loss(labels, model_outputs), batch=labels
        )
        if "next_sentence_labels" in labels:
            by_name["next_sentence_accuracy"].update_state(
                labels["next_sentence_labels"], model_outputs[_NEXT_SENTENCE]
            )
            by_name["next_sentence_loss"].update_state(
                _next_sentence_loss(labels, model_outputs), batch=labels
            )


def _sizes(params: Any) -> tuple[int, int]:
    return params.seq_length, params.max_predictions_per_seq


def _masked_lm_loss(labels: Any, outputs: Any) -> tf.Tensor:
    """Return the mean loss over the masked words, or 0 if there are none."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels["masked_lm_ids"], outputs["mlm_logits"]
    )
    weights = labels["masked_lm_weights"]
    return tf.math.divide_no_nan(tf.reduce_sum(losses * weights), tf.reduce_sum(weights))


def _next_sentence_loss(labels: Any, outputs: Any) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels["next_sentence_labels"][:, 0], outputs[_NEXT_SENTENCE]
    )
    return tf.reduce_mean(losses)
