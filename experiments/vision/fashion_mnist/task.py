"""The task of classifying Fashion-MNIST."""

from typing import Any

import keras
import tensorflow as tf

from experiments.vision.classification import task
from experiments.vision.fashion_mnist import data, model
from official_lite.common import errors

__all__ = ["FashionMnistTask"]


class FashionMnistTask(task.ClassificationTask):
    """A task that assigns images of clothes to one of ten classes."""

    def build_model(self) -> keras.Model:
        config = self.task_config
        built = model.build_model(config.model, data.IMAGE_SHAPE, data.NUM_CLASSES)
        task.decay_kernels(built, config.losses.l2_weight_decay)
        return built

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        return data.build_dataset(self._examples(params.is_training), params, input_context)

    def _examples(self, is_training: bool) -> Any:
        held_out = self.task_config.num_held_out
        directory = str(self.task_config.input_path)
        if not held_out:
            return data.load_split(directory, "train" if is_training else "test")
        images, labels = data.load_split(directory, "train")
        if held_out >= len(labels):
            raise errors.ConfigValueError(
                f"`task.num_held_out` is {held_out}; expected fewer than the {len(labels)} "
                "training images."
            )
        rows = slice(None, -held_out) if is_training else slice(-held_out, None)
        return images[rows], labels[rows]
