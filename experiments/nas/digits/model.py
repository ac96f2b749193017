"""A small network whose layers an architecture search chooses."""

import functools

import keras

from experiments.nas.digits import configs
from official_lite import nas

__all__ = ["OPERATIONS", "build_model", "create_operation"]

OPERATIONS = ("conv3", "conv1", "avgpool", "zero")


def create_operation(name: str, filters: int) -> keras.layers.Layer:
    """Return a shape-preserving Keras layer, so that the architecture found needs only Keras."""
    if name == "conv3":
        return keras.layers.Conv2D(filters, 3, padding="same")
    if name == "conv1":
        return keras.layers.Conv2D(filters, 1)
    if name == "avgpool":
        return keras.layers.AveragePooling2D(3, strides=1, padding="same")
    return keras.layers.Rescaling(0.0)


def build_model(
    config: configs.CellsConfig, image_shape: tuple[int, int, int], num_classes: int
) -> keras.Model:
    """Build a model from images `(batch, *image_shape)` to logits `(batch, num_classes)`."""
    inputs = keras.Input(image_shape, name="image")
    x = keras.layers.Conv2D(config.filters, 1)(inputs)
    for number in range(config.num_choices):
        choice = nas.LayerChoice(
            {
                name: functools.partial(create_operation, name, config.filters)
                for name in OPERATIONS
            },
            label=f"layer{number}",
        )
        x = keras.layers.ReLU()(keras.layers.Add()([x, choice(x)]))
    x = keras.layers.GlobalAveragePooling2D()(x)
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    return keras.Model(inputs, logits, name="cells")
