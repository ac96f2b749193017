"""Text files, or TFRecords of tokens, as batches of stretches of tokens."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from experiments.language.gpt2 import configs
from experiments.language.tokenizer import library
from official_lite.core import input_reader

__all__ = ["FEATURE", "load_tokens", "matched_paths", "read_records"]

FEATURE = "ids"

# Anything between documents that the tokenizer knows.
_BETWEEN_FILES = ("<|endoftext|>", "</s>", "[SEP]")


# A trainer asks for its data more than once.
@functools.lru_cache(maxsize=2)
def load_tokens(paths: tuple[str, ...], tokenizer_path: str) -> np.ndarray:
    """Text files as one sequence of tokens, in which each file ends with the end of a text.

    Args:
        paths: The files, in UTF-8.
        tokenizer_path: A `tokenizer.json`.
    """
    tokenizer = library.load_tokenizer(tokenizer_path)
    end = np.array([library.require_token(tokenizer, *_BETWEEN_FILES)], np.int32)
    parts: list[np.ndarray] = []
    for path in paths:
        parts += library.encode_lines(tokenizer, library.read_lines([path]))
        parts.append(end)
    return np.concatenate(parts)


def read_records(
    params: configs.Gpt2DataConfig,
    seq_length: int,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Batches of `(inputs, labels)` out of records of `seq_length` + 1 tokens.

    Args:
        params: Which files.
        seq_length: That of the model, for which they were written.
        input_context: Which of how many input pipelines this is.
    """
    features = {FEATURE: tf.io.FixedLenFeature((seq_length + 1,), tf.int64)}

    @input_reader.takes_batches
    def parse(raw: dict[str, tf.Tensor]) -> Any:
        ids = tf.cast(raw[FEATURE], tf.int32)
        return ids[:, :-1], ids[:, 1:]

    decoder = input_reader.FeatureDecoder(features)
    reader = input_reader.InputReader(params, decoder_fn=decoder.decode, parser_fn=parse)
    return reader.read(input_context)


def matched_paths(input_path: Sequence[str] | str) -> tuple[str, ...]:
    """The files of a config, as what a cache can know again."""
    return tuple(input_reader.match_files(input_path))
