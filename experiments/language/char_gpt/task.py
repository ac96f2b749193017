"""The task of predicting the next character."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.language.causal_lm import task
from experiments.language.char_gpt import data
from official_lite.common import errors

__all__ = ["CharGptTask"]


class CharGptTask(task.CausalLmTask):
    """A task that predicts the next character; the alphabet is that of the text."""

    bits_name = "bits_per_character"

    @property
    def vocab_size(self) -> int:
        return len(self._text().characters)

    def load_tokens(self, params: Any) -> np.ndarray:
        tokens = self._text().tokens
        num_train = int(len(tokens) * self.task_config.train_fraction)
        return tokens[:num_train] if params.split == "train" else tokens[num_train:]

    def encode(self, text: str) -> list[int]:
        characters = self._text().characters
        unknown = sorted(set(text) - set(characters))
        if unknown:
            raise errors.DataError(
                f"The text contains {''.join(unknown)!r}, but the training text does not. Use only "
                f"the characters {characters!r}."
            )
        return [characters.index(character) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        characters = self._text().characters
        return "".join(characters[token] for token in tokens)

    def _text(self) -> data.Text:
        return data.load_text(self.task_config.input_path)
