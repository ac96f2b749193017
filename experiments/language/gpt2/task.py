"""The task of predicting the next token of a tokenizer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from experiments.language.causal_lm import task
from experiments.language.gpt2 import data
from experiments.language.tokenizer import library

__all__ = ["Gpt2Task"]


class Gpt2Task(task.CausalLmTask):
    """A task that predicts the next token of a tokenizer."""

    bits_name = "bits_per_token"

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer().get_vocab_size())

    def load_tokens(self, params: Any) -> np.ndarray:
        paths = data.matched_paths(params.input_path)
        return data.load_tokens(paths, self.task_config.tokenizer_path)

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        if params.file_type == "tfrecord":
            return data.read_records(params, self.task_config.model.seq_length, input_context)
        return super().build_inputs(params, input_context)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer().encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer().decode(list(tokens)))

    def _tokenizer(self) -> Any:
        return library.load_tokenizer(self.task_config.tokenizer_path)
