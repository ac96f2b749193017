"""Networks for several targets with a shared encoder."""

from collections.abc import Mapping

import keras

from experiments.vision.digits import configs
from experiments.vision.digits import data as digits
from experiments.vision.digits_pretraining import model
from official_lite.modeling.multitask import base_model

__all__ = ["DigitsModels"]


class DigitsModels(base_model.MultiTaskBaseModel):
    """A set of models, one per target, that differ only in their last layers.

    Args:
        config: The shared layers.
        num_classes: The number of classes of each target, by its name.
    """

    def __init__(self, config: configs.DigitsModelConfig, num_classes: Mapping[str, int]) -> None:
        self.encoder = model.build_encoder(config, digits.IMAGE_SHAPE)
        self._config = config
        self._num_classes = num_classes
        super().__init__()

    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        return {name: self._build_head(name, count) for name, count in self._num_classes.items()}

    def _build_head(self, name: str, num_classes: int) -> keras.Model:
        inputs = keras.Input(digits.IMAGE_SHAPE, name="image")
        x = keras.layers.Dropout(self._config.dropout_rate)(self.encoder(inputs))
        logits = keras.layers.Dense(num_classes, dtype="float32", name=f"{name}_logits")(x)
        return keras.Model(inputs, logits, name=name)
