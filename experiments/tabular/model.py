"""Dense layers over normalized numbers and embedded categories."""

from collections.abc import Sequence

import keras
import numpy as np

from experiments.tabular import configs

__all__ = ["build_model"]


def build_model(
    config: configs.TableModelConfig,
    training_numbers: np.ndarray,
    vocabulary_sizes: Sequence[int],
    num_classes: int,
) -> keras.Model:
    """Build a model from a dict of `numbers` and `categories` to logits `(batch, num_classes)`.

    Args:
        config: The layers.
        training_numbers: The numbers of the training rows, whose means and variances the model
            uses. A missing number is replaced by the mean, and marked by a flag.
        vocabulary_sizes: The number of known categories in each column of categories.
        num_classes: The number of classes.
    """
    inputs, parts = {}, []
    if num_columns := training_numbers.shape[1]:
        inputs["numbers"] = numbers = keras.Input((num_columns,), name="numbers")
        present = np.ma.masked_invalid(training_numbers)
        variance = present.var(axis=0, dtype=np.float64).filled(1)
        normalization = keras.layers.Normalization(
            mean=present.mean(axis=0, dtype=np.float64).filled(0),
            # With a variance of 0, a new value in a constant column would become huge.
            variance=np.where(variance > 0, variance, 1),
            # In half precision, large inputs lose digits: two different years may become equal.
            dtype="float32",
        )
        is_missing = keras.ops.isnan(numbers)
        parts.append(keras.ops.where(is_missing, 0.0, normalization(numbers)))
        if np.isnan(training_numbers).any():
            parts.append(keras.ops.cast(is_missing, "float32"))
    if vocabulary_sizes:
        shape = (len(vocabulary_sizes),)
        inputs["categories"] = categories = keras.Input(shape, dtype="int32", name="categories")
        for column, size in enumerate(vocabulary_sizes):
            embedding = keras.layers.Embedding(1 + size, config.embedding_size)
            parts.append(embedding(categories[:, column]))
    x = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    for units in config.units:
        x = keras.layers.Dense(units, activation="relu")(x)
        x = keras.layers.Dropout(config.dropout_rate)(x)
    # Logits are float32 even under mixed precision, because the loss is sensitive to rounding.
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    return keras.Model(inputs, logits, name="table")
