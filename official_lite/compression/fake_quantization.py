"""Rounding of weights and activations to the values that 8-bit integers can represent.

Activations are rounded by TensorFlow's `fake_quant` op, which the converter of LiteRT replaces by
integers. Kernels are rounded by plain arithmetic: the converter chooses the scales of constants
itself, by the same rule, so it finds the same integers, also after it has folded a batch
normalization into a kernel.

See Jacob et al., Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference (2018).
"""

from collections.abc import Sequence

import tensorflow as tf

__all__ = ["quantize_activation", "quantize_kernel"]

# The largest integer of a symmetric range.
_LARGEST = 127.0


def quantize_kernel(kernel: tf.Tensor, channel_axes: Sequence[int]) -> tf.Tensor:
    """Round a kernel symmetrically around 0, with the largest weight of each channel at 127.

    The gradient passes the rounding unchanged (the straight-through estimator).

    Args:
        kernel: The weights, of any floating dtype.
        channel_axes: The axes that number the channels, each of which has its own scale. Empty for
            one scale.
    """
    exact = tf.cast(kernel, tf.float32)
    fixed = tf.stop_gradient(exact)
    axes = [axis for axis in range(len(kernel.shape)) if axis not in channel_axes]
    # A channel may consist of zeros, for example after pruning.
    limit = tf.maximum(tf.reduce_max(tf.abs(fixed), axis=axes, keepdims=True), 1e-6)
    scale = limit / _LARGEST
    rounded = tf.round(fixed / scale) * scale
    return tf.cast(exact + tf.stop_gradient(rounded - exact), kernel.dtype)


def quantize_activation(x: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """Round values to 256 steps between `low` and `high`, and clip values outside of the range.

    The gradient is 1 inside of the range and 0 outside.
    """
    rounded = tf.quantization.fake_quant_with_min_max_vars(tf.cast(x, tf.float32), low, high)
    return tf.cast(rounded, x.dtype)
