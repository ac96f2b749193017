"""The mean over examples, from the means over batches."""

from typing import Any

import keras
import tensorflow as tf

__all__ = ["update_batch_mean"]


def update_batch_mean(metric: keras.metrics.Mean, value: Any, inputs: Any) -> None:
    """Counts a batch's mean by the size of the batch, which may be partial, or empty.

    Where `inputs` hold no tensor with a batch dimension, all batches count alike.
    """
    size = _batch_size(inputs)
    if size is None:
        metric.update_state(value)
        return
    weight = tf.cast(size, tf.float32)
    # The mean over no examples is NaN, and NaN times a weight of zero is NaN.
    metric.update_state(tf.where(weight > 0, tf.cast(value, tf.float32), 0.0), weight)


def _batch_size(inputs: Any) -> tf.Tensor | None:
    tensors = [x for x in tf.nest.flatten(inputs) if tf.is_tensor(x)]
    batched = [x for x in tensors if x.shape.rank is None or x.shape.rank > 0]
    return tf.shape(batched[0], out_type=tf.int64)[0] if batched else None
