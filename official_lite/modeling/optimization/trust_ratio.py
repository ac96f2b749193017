"""Ratio of the norm of a layer's weights to the norm of its update."""

import tensorflow as tf

__all__ = ["trust_ratio"]


def trust_ratio(weights: tf.Tensor, update: tf.Tensor, coefficient: float = 1.0) -> tf.Tensor:
    """Return the scalar `coefficient * |weights| / |update|`, or 1 if either norm is 0."""
    weights_norm, update_norm = tf.norm(weights), tf.norm(update)
    is_defined = tf.logical_and(weights_norm > 0, update_norm > 0)
    ratio = tf.math.divide_no_nan(coefficient * weights_norm, update_norm)
    return tf.where(is_defined, ratio, tf.ones_like(ratio))
