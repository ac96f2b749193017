"""The mean over examples, from the means over batches."""

from typing import Any

import keras
import tensorflow as tf

from official_lite.common import user_code
from official_lite.orbit.utils import step_guard

__all__ = ["BatchMean"]


class BatchMean(keras.metrics.Mean):
    """A mean over examples that is given the means of batches.

    A scalar counts by the number of examples in its batch, which may be partial or empty. Where the
    batch is not given, it is the one that the current step has fetched on this replica; so a step
    written for a plain `keras.metrics.Mean` gives the mean over all examples, too. With a
    `sample_weight`, and for other values than scalars, this is a plain `keras.metrics.Mean`.
    """

    @user_code.not_converted
    def update_state(self, values: Any, sample_weight: Any = None, *, batch: Any = None) -> None:
        size = None
        if sample_weight is None and tf.convert_to_tensor(values).shape.rank == 0:
            size = _fetched_size() if batch is None else _batch_size(batch)
        if size is None:
            super().update_state(values, sample_weight)
            return
        weight = tf.cast(size, tf.float32)
        # The mean over no examples is NaN, and NaN times a weight of zero is NaN.
        super().update_state(tf.where(weight > 0, tf.cast(values, tf.float32), 0.0), weight)


def _batch_size(batch: Any) -> tf.Tensor | None:
    """Return the number of examples; None if no tensor of the batch has a batch dimension."""
    tensors = [x for x in tf.nest.flatten(batch) if tf.is_tensor(x)]
    batched = [x for x in tensors if x.shape.rank is None or x.shape.rank > 0]
    return tf.shape(batched[0], out_type=tf.int64)[0] if batched else None


def _fetched_size() -> tf.Tensor | None:
    """Return the size of this replica's part of the batch that the current step has fetched."""
    context = tf.distribute.get_replica_context()
    batch = step_guard.current_batch()
    if context is None or batch is None:
        return None
    parts = zip(
        *map(context.strategy.experimental_local_results, tf.nest.flatten(batch)), strict=True
    )
    sizes = [_batch_size(part) for part in parts]
    if not sizes or sizes[0] is None:
        return None
    # Every worker has as many replicas.
    return tf.stack(sizes)[context.replica_id_in_sync_group % len(sizes)] if sizes[1:] else sizes[0]
