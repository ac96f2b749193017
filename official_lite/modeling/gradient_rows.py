"""Gradients of tables of which a step touches some rows: `tf.IndexedSlices`.

They come from looking rows up (`keras.layers.Embedding`, `tf.gather`), and hold a row for each
look-up, so that a token that is twice in a batch is there twice. Nothing but a sum may be taken of
such a gradient before equal rows are one.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

__all__ = ["are_wanted", "sum_equal_rows"]


def are_wanted() -> bool:
    """Whether to update rows only, in what is being traced.

    Not in a program that XLA compiles: how many different rows there are is not known to it, so
    that it computes with as many as there are look-ups, one after the other.
    """
    in_xla: bool = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    return not in_xla


def sum_equal_rows(gradient: Any) -> Any:
    """The same gradient with each row at most once; a dense one as it is."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
