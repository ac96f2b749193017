"""Sparse gradients (`tf.IndexedSlices`) of tables of which a step uses only some rows.

Row look-ups (`keras.layers.Embedding`, `tf.gather`) produce these gradients. They contain one row
per look-up, so a token that occurs twice in a batch has two rows. Sum the equal rows before
computing anything other than a sum from such a gradient.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

__all__ = ["are_wanted", "sum_equal_rows"]


def are_wanted() -> bool:
    """Return whether the function being traced should update individual rows.

    XLA programs should not. XLA does not know the number of distinct rows, so it would process as
    many rows as there are look-ups, one after the other.
    """
    in_xla: bool = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    return not in_xla


def sum_equal_rows(gradient: Any) -> Any:
    """Return the gradient with each row at most once; a dense gradient is returned unchanged."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
