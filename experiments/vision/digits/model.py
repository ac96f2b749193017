"""A small network for small images."""

import keras

from experiments.vision.digits import configs

__all__ = ["build_model"]


def build_model(
    config: configs.DigitsModelConfig, image_shape: tuple[int, int, int], num_classes: int
) -> keras.Model:
    """Build a model from images `(batch, *image_shape)` to logits `(batch, num_classes)`."""
    inputs = x = keras.Input(image_shape, name="image")
    for index, filters in enumerate(config.filters):
        strides = 1 if index == 0 else 2
        x = keras.layers.Conv2D(filters, 3, strides, padding="same", activation="relu")(x)
    x = keras.layers.Flatten()(x)
    for units in config.units:
        x = keras.layers.Dense(units, activation="relu")(x)
    x = keras.layers.Dropout(config.dropout_rate)(x)
    # Logits are float32 even under mixed precision, because the loss is sensitive to rounding.
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    return keras.Model(inputs, logits, name="digits")
