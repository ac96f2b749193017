"""The residual networks for CIFAR-10 of https://arxiv.org/abs/1512.03385, section 4.2."""

from typing import Any

import keras

from experiments.vision.resnet_cifar10 import configs

__all__ = ["build_model"]

# The mean and the standard deviation of each color in the training images.
_MEAN = (125.3, 123.0, 113.9)
_DEVIATION = (63.0, 62.1, 66.7)

_NUM_SIZES = 3


def build_model(
    config: configs.Cifar10ResNetConfig, image_shape: tuple[int, int, int], num_classes: int
) -> keras.Model:
    """Build a model from images in [0, 255] of shape `(batch, *image_shape)` to logits."""
    inputs = keras.Input(image_shape, name="image")
    variances = [deviation**2 for deviation in _DEVIATION]
    x = keras.layers.Normalization(mean=_MEAN, variance=variances)(inputs)
    x = _convolve(x, config.filters, 1, name="stem")
    for size in range(_NUM_SIZES):
        for block in range(config.num_blocks):
            is_smaller = size > 0 and block == 0
            name = f"size{size + 1}_block{block + 1}"
            x = _add_block(x, config.filters * 2**size, 2 if is_smaller else 1, name)
    x = keras.layers.GlobalAveragePooling2D()(x)
    # Logits are float32 even under mixed precision, because the loss is sensitive to rounding.
    logits = keras.layers.Dense(
        num_classes, kernel_initializer="he_normal", dtype="float32", name="logits"
    )(x)
    depth = 2 * _NUM_SIZES * config.num_blocks + 2
    return keras.Model(inputs, logits, name=f"resnet{depth}")


def _add_block(x: Any, filters: int, strides: int, name: str) -> Any:
    y = _convolve(x, filters, strides, name=f"{name}_1")
    y = _convolve(y, filters, 1, name=f"{name}_2", activation=None)
    if strides > 1:
        x = _shortcut(x, filters, strides)
    return keras.layers.ReLU()(keras.layers.Add()([x, y]))


def _shortcut(x: Any, filters: int, strides: int) -> Any:
    """Return a shortcut without weights: a subset of the pixels, with zeros in new channels."""
    x = keras.layers.MaxPooling2D(1, strides)(x)
    missing = filters - x.shape[-1]
    return keras.ops.pad(x, [[0, 0], [0, 0], [0, 0], [missing // 2, missing - missing // 2]])


def _convolve(x: Any, filters: int, strides: int, name: str, activation: Any = "relu") -> Any:
    x = keras.layers.Conv2D(
        filters,
        3,
        strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    x = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)
    return keras.layers.Activation(activation)(x) if activation else x
