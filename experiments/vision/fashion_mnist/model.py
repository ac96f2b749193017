"""A small residual network."""

from typing import Any

import keras
import tensorflow as tf

from experiments.vision.fashion_mnist import configs

__all__ = ["FusedBatchNormalization", "build_model"]

# The mean and the standard deviation of all pixels of the training images.
_MEAN = 72.94
_DEVIATION = 90.02


def build_model(
    config: configs.FashionMnistModelConfig, image_shape: tuple[int, int, int], num_classes: int
) -> keras.Model:
    """Build a model from images in [0, 255] of shape `(batch, *image_shape)` to logits."""
    inputs = keras.Input(image_shape, name="image")
    x = keras.layers.Normalization(mean=_MEAN, variance=_DEVIATION**2)(inputs)
    x = _convolve(x, config.filters[0], config.stem_strides, name="stem")
    x = keras.layers.ReLU()(x)
    for size, filters in enumerate(config.filters):
        for block in range(config.num_blocks):
            is_smaller = size > 0 and block == 0
            name = f"size{size + 1}_block{block + 1}"
            x = _add_block(x, filters, 2 if is_smaller else 1, name)
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dropout(config.dropout_rate)(x)
    # Logits are float32 even under mixed precision, because the loss is sensitive to rounding.
    logits = keras.layers.Dense(
        num_classes, kernel_initializer="he_normal", dtype="float32", name="logits"
    )(x)
    return keras.Model(inputs, logits, name="fashion_mnist")


def _add_block(x: Any, filters: int, strides: int, name: str) -> Any:
    y = keras.layers.ReLU()(_convolve(x, filters, strides, name=f"{name}_1"))
    y = _convolve(y, filters, 1, name=f"{name}_2")
    if strides > 1:
        x = _convolve(x, filters, strides, name=f"{name}_shortcut", kernel_size=1)
    return keras.layers.ReLU()(keras.layers.Add()([x, y]))


def _convolve(x: Any, filters: int, strides: int, name: str, kernel_size: int = 3) -> Any:
    x = keras.layers.Conv2D(
        filters,
        kernel_size,
        strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    return FusedBatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)


@keras.saving.register_keras_serializable("official_lite")
class FusedBatchNormalization(keras.layers.BatchNormalization):
    """Keras' normalization of image channels, computed by a single op in training.

    Keras computes mean, variance and the normalized images in a dozen ops, each of which reads all
    images from memory. As in Keras 2 and PyTorch, the moving variance is that of a sample: n / (n -
    1) times the variance of the batch.
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Normalize images, and update the moving statistics in training."""
        if not (training and self.trainable):
            return super().call(inputs, training=training, mask=mask)
        outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs,
            tf.cast(self.gamma, tf.float32),
            tf.cast(self.beta, tf.float32),
            epsilon=self.epsilon,
            is_training=True,
        )
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + value * (1.0 - self.momentum))
        return outputs
