"""Activation functions of the Model Garden, registered under the names its saved models use."""

import keras
import tensorflow as tf

__all__ = ["gelu", "hard_sigmoid", "hard_swish", "identity", "mish", "relu6", "simple_swish"]


@keras.saving.register_keras_serializable(package="Text")
def gelu(x: tf.Tensor) -> tf.Tensor:
    """Return the Gaussian error linear unit (tanh approximation).

    See https://arxiv.org/abs/1606.08415.
    """
    return keras.activations.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="Text")
def mish(x: tf.Tensor) -> tf.Tensor:
    """Return `x * tanh(softplus(x))`; see https://arxiv.org/abs/1908.08681."""
    return keras.activations.mish(x)


@keras.saving.register_keras_serializable(package="Text")
def relu6(features: tf.Tensor) -> tf.Tensor:
    """Return `min(max(x, 0), 6)`; see https://arxiv.org/abs/1704.04861."""
    return keras.activations.relu6(features)


@keras.saving.register_keras_serializable(package="Text")
def hard_sigmoid(features: tf.Tensor) -> tf.Tensor:
    """Return `relu6(x + 3) / 6`; see https://arxiv.org/abs/1905.02244."""
    features = tf.convert_to_tensor(features)
    # Use 0.16667 instead of 1/6, because Model Garden weights were trained with this constant.
    return relu6(features + tf.cast(3.0, features.dtype)) * 0.16667


@keras.saving.register_keras_serializable(package="Text")
def simple_swish(features: tf.Tensor) -> tf.Tensor:
    """Return `x * sigmoid(x)`; see https://arxiv.org/abs/1710.05941."""
    return keras.activations.silu(features)


@keras.saving.register_keras_serializable(package="Text")
def hard_swish(features: tf.Tensor) -> tf.Tensor:
    """Return `x * relu6(x + 3) / 6`; see https://arxiv.org/abs/1905.02244."""
    return keras.activations.hard_swish(features)


@keras.saving.register_keras_serializable(package="Text")
def identity(features: tf.Tensor) -> tf.Tensor:
    """Return the argument as a tensor; quantization may be inserted here."""
    return tf.identity(features)
