"""The per-replica share of a global batch."""

from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.common import errors, user_code

__all__ = ["per_replica_batch_size", "warn_of_large_batch", "with_any_batch_size"]


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


def with_any_batch_size(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the same batches with a batch size that is statically unknown.

    If the batch size is static, tf.distribute drops the last batches when some replica gets none.
    """

    def relax(part: Any) -> Any:
        if not isinstance(part, tf.Tensor) or not part.shape.rank:
            return part
        return tf.compat.v1.placeholder_with_default(part, [None, *part.shape[1:]])

    @user_code.not_converted
    def relax_all(*batch: Any) -> Any:
        parts = [relax(part) for part in tf.nest.flatten(batch)]
        return tf.nest.pack_sequence_as(dataset.element_spec, parts)

    return dataset.map(relax_all)
