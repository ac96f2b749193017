"""A network for digits whose first part can be pre-trained on another target."""

import keras

from experiments.vision.digits import configs

__all__ = ["build_encoder", "build_model"]


def build_model(
    config: configs.DigitsModelConfig, image_shape: tuple[int, int, int], num_outputs: int
) -> keras.Model:
    """Build a model from images `(batch, *image_shape)` to numbers; its first part is `encoder`."""
    inputs = keras.Input(image_shape, name="image")
    x = build_encoder(config, image_shape)(inputs)
    x = keras.layers.Dropout(config.dropout_rate)(x)
    outputs = keras.layers.Dense(num_outputs, dtype="float32", name="outputs")(x)
    return keras.Model(inputs, outputs, name="digits")


def build_encoder(
    config: configs.DigitsModelConfig, image_shape: tuple[int, int, int]
) -> keras.Model:
    """Build a model from images to vectors: all layers of the digits network but the last."""
    inputs = x = keras.Input(image_shape, name="image")
    for index, filters in enumerate(config.filters):
        strides = 1 if index == 0 else 2
        x = keras.layers.Conv2D(
            filters, 3, strides, padding="same", activation="relu", name=f"encoder_conv{index + 1}"
        )(x)
    x = keras.layers.Flatten()(x)
    for index, units in enumerate(config.units):
        x = keras.layers.Dense(units, activation="relu", name=f"encoder_dense{index + 1}")(x)
    return keras.Model(inputs, x, name="encoder")
