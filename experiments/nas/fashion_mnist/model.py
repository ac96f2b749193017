"""A small network without shortcuts whose layers an architecture search chooses."""

import functools
from typing import Any

import keras

from experiments.nas.fashion_mnist import configs
from experiments.vision.fashion_mnist.model import FusedBatchNormalization
from official_lite import nas

__all__ = ["OPERATIONS", "build_model", "create_operation"]

OPERATIONS = ("conv3", "conv5", "separable3", "conv1", "avgpool", "maxpool", "identity")


def create_operation(name: str, filters: int) -> keras.layers.Layer:
    """Return a shape-preserving Keras layer, so that the architecture found needs only Keras."""
    if name.startswith("conv"):
        return _convolution(filters, int(name[-1]))
    if name == "separable3":
        return keras.layers.SeparableConv2D(filters, 3, padding="same", use_bias=False)
    if name == "avgpool":
        return keras.layers.AveragePooling2D(3, strides=1, padding="same")
    if name == "maxpool":
        return keras.layers.MaxPooling2D(3, strides=1, padding="same")
    return keras.layers.Identity()


def build_model(
    config: configs.LayersConfig, image_shape: tuple[int, int, int], num_classes: int
) -> keras.Model:
    """Build a model from images in [0, 255] of shape `(batch, *image_shape)` to logits.

    The layers of an image size follow each other. Each is a choice, a normalization and a ReLU. The
    normalization is shared by all operations of its choice.
    """
    inputs = keras.Input(image_shape, name="image")
    x = keras.layers.Rescaling(1.0 / 255.0)(inputs)
    x = _convolution(config.filters[0], 3, strides=config.stem_strides)(x)
    x = _normalize(x)
    for size, filters in enumerate(config.filters):
        if size > 0:
            x = _normalize(_convolution(filters, 1)(keras.layers.MaxPooling2D()(x)))
        for layer in range(config.num_blocks):
            candidates = {
                name: functools.partial(create_operation, name, filters) for name in OPERATIONS
            }
            choice = nas.LayerChoice(candidates, label=f"size{size + 1}_layer{layer + 1}")
            x = _normalize(choice(x))
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dropout(config.dropout_rate)(x)
    logits = keras.layers.Dense(
        num_classes, kernel_initializer="he_normal", dtype="float32", name="logits"
    )(x)
    return keras.Model(inputs, logits, name="layers")


def _convolution(filters: int, kernel_size: int, strides: int = 1) -> keras.layers.Layer:
    return keras.layers.Conv2D(
        filters,
        kernel_size,
        strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
    )


def _normalize(x: Any) -> Any:
    return keras.layers.ReLU()(FusedBatchNormalization(momentum=0.9, epsilon=1e-5)(x))
