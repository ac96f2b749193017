"""The task of predicting the next byte."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from experiments import known_number
from experiments.language.causal_lm import task
from experiments.language.gpt_stdlib import data

__all__ = ["GptStdlibTask"]


class GptStdlibTask(task.CausalLmTask):
    """A task that predicts the next byte of source text."""

    bits_name = "bits_per_byte"

    @property
    def vocab_size(self) -> int:
        return 256

    def load_tokens(self, params: Any) -> np.ndarray:
        return self._load_bytes(params.split)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        metrics = super().build_metrics(training)
        if training:
            return metrics
        bits = data.gzip_bits_per_byte(self._load_bytes("validation"))
        return [*metrics, known_number.KnownNumber(bits, "gzip_bits_per_byte")]

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def _load_bytes(self, split: str) -> np.ndarray:
        config = self.task_config
        return data.load_bytes(config.source_dir, split, config.held_out_percent)
