"""Conversion of records in Criteo's format to model inputs, a batch in one call."""

from typing import Any

import tensorflow as tf

from experiments.recommendation.criteo import generator
from official_lite.core import input_reader

__all__ = ["RECORD_FEATURES", "decode_lines", "hash_tokens", "log_integers", "to_model_inputs"]

# The default of each field of a line: the label, the integers and the categories. Only the label is
# required.
_LINE_DEFAULTS: list[list[Any]] = [
    [],
    *([[float("nan")]] * generator.NUM_INTEGERS),
    *([[""]] * generator.NUM_CATEGORIES),
]

RECORD_FEATURES = {
    "label": tf.io.FixedLenFeature((1,), tf.int64),
    "integers": tf.io.FixedLenFeature((generator.NUM_INTEGERS,), tf.float32),
    "categories": tf.io.FixedLenFeature((generator.NUM_CATEGORIES,), tf.string),
}
"""The features of a `tf.train.Example`: the fields of a line, with NaN for a missing integer."""


@input_reader.takes_batches
def decode_lines(lines: tf.Tensor) -> dict[str, tf.Tensor]:
    """Decode lines of a TSV file into `RECORD_FEATURES`."""
    columns = tf.io.decode_csv(lines, _LINE_DEFAULTS, field_delim="\t", use_quote_delim=False)
    first_category = 1 + generator.NUM_INTEGERS
    return {
        "label": columns[0][:, tf.newaxis],
        "integers": tf.stack(columns[1:first_category], axis=1),
        "categories": tf.stack(columns[first_category:], axis=1),
    }


def to_model_inputs(raw: dict[str, tf.Tensor], table_rows: int) -> tuple[Any, tf.Tensor]:
    """Return features and labels.

    Args:
        raw: A batch of `RECORD_FEATURES`.
        table_rows: The number of rows for each category.

    Returns:
        Features: `integers`, their logarithms, float32 of shape (batch, 13), and `rows`, int32 of
        shape (batch, 26). Labels: float32 of shape (batch, 1).
    """
    categories = tf.range(generator.NUM_CATEGORIES)
    features = {
        "integers": log_integers(raw["integers"]),
        "rows": hash_tokens(raw["categories"], categories, table_rows),
    }
    return features, tf.cast(raw["label"], tf.float32)


def log_integers(integers: tf.Tensor) -> tf.Tensor:
    """Return log(1 + n) of each integer n; negative and missing ones are treated as 0."""
    is_counted = integers > 0
    return tf.math.log1p(tf.where(is_counted, integers, 0.0))


def hash_tokens(tokens: tf.Tensor, categories: tf.Tensor, table_rows: int) -> tf.Tensor:
    """Return row numbers of one table that contains the rows of all categories in turn.

    Args:
        tokens: Values of categories. An empty value is missing and has its own row, the first.
        categories: The number of the category of each value, of a compatible shape.
        table_rows: The number of rows for each category.
    """
    rows = 1 + tf.strings.to_hash_bucket_fast(tokens, table_rows - 1)
    rows = tf.where(tokens == "", tf.zeros_like(rows), rows)
    return tf.cast(rows, tf.int32) + categories * table_rows
