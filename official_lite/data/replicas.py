"""The per-replica share of a global batch."""

import tensorflow as tf
from absl import logging

from official_lite.common import errors

__all__ = ["per_replica_batch_size", "warn_of_large_batch"]


def per_replica_batch_size(
    batch_size: int, input_context: tf.distribute.InputContext | None = None
) -> int:
    """Return the batch size of one replica.

    Args:
        batch_size: The global batch size.
        input_context: Provides the number of replicas; None means one replica.

    Raises:
        ConfigValueError: `batch_size` is less than 1 or not divisible by the number of replicas.
    """
    if batch_size < 1:
        raise errors.ConfigValueError(f"`global_batch_size` is {batch_size}; expected 1 or more.")
    num_replicas = input_context.num_replicas_in_sync if input_context else 1
    if batch_size % num_replicas:
        raise errors.ConfigValueError(
            f"`global_batch_size` is {batch_size}, which can't be divided evenly among "
            f"{num_replicas} replicas. The next larger valid value is "
            f"{-(-batch_size // num_replicas) * num_replicas}."
        )
    return batch_size // num_replicas


def warn_of_large_batch(batch_size: int, num_examples: int) -> None:
    """Warn that a batch of the training data is larger than the data."""
    logging.warning(
        "A training batch should have %d examples, but there are only %d, so each batch contains "
        "all of them. Lower `global_batch_size` if this is not intended.",
        batch_size,
        num_examples,
    )
