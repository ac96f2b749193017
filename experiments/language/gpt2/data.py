"""Text files, or TFRecords of tokens, as batches of token sequences."""

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

# Candidates for the separator between files. The first one in the tokenizer's vocabulary is used.
_BETWEEN_FILES = ("<|endoftext|>", "</s>", "[SEP]")


# Cached, because a trainer requests its data more than once.
@functools.lru_cache(maxsize=2)
def load_tokens(paths: tuple[str, ...], tokenizer_path: str) -> np.ndarray:
    """Load text files as one sequence of tokens, with an end-of-text token after each file.

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
    """Read batches of `(inputs, labels)` from records of `seq_length` + 1 tokens.

    Args:
        params: The files.
        seq_length: The sequence length of the model for which the records were written.
        input_context: The index of this input pipeline and the number of pipelines.
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
    """Return the files that match `input_path` as a tuple, so that it can be a cache key."""
    return tuple(input_reader.match_files(input_path))
