"""A residual network of convolutions over the points of a curve."""

from typing import Any

import keras

from experiments.sequence.mnist1d import configs

__all__ = ["build_model"]


def build_model(
    config: configs.Mnist1dModelConfig, num_points: int, num_classes: int
) -> keras.Model:
    """Build a model from curves `(batch, num_points, 1)` to logits `(batch, num_classes)`."""
    inputs = x = keras.Input((num_points, 1), name="curve")
    for index, filters in enumerate(config.filters):
        x = _add_block(x, filters, 1 if index == 0 else 2, config.kernel_size, f"block{index + 1}")
    x = keras.layers.GlobalAveragePooling1D()(x)
    x = keras.layers.Dropout(config.dropout_rate)(x)
    # Logits are float32 even under mixed precision, because the loss is sensitive to rounding.
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    return keras.Model(inputs, logits, name="mnist1d")


def _add_block(x: Any, filters: int, strides: int, kernel_size: int, name: str) -> Any:
    y = _convolve(x, filters, kernel_size, strides, name=f"{name}_1")
    y = keras.layers.ReLU()(y)
    y = _convolve(y, filters, kernel_size, 1, name=f"{name}_2")
    shortcut = _convolve(x, filters, 1, strides, name=f"{name}_shortcut")
    return keras.layers.ReLU()(keras.layers.Add()([shortcut, y]))


def _convolve(x: Any, filters: int, kernel_size: int, strides: int, name: str) -> Any:
    x = keras.layers.Conv1D(
        filters,
        kernel_size,
        strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)
