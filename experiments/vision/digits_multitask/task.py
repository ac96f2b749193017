"""The tasks of recognizing a digit and its parity."""

from typing import Any, Self

import tensorflow as tf

from experiments.vision.digits import data as digits
from experiments.vision.digits import task
from experiments.vision.digits_multitask import model
from experiments.vision.digits_pretraining import data
from official_lite.modeling.multitask import multitask

__all__ = ["NUM_CLASSES", "DigitsTasks", "TargetTask", "make_tasks"]

NUM_CLASSES = {"digit": digits.NUM_CLASSES, "parity": 2}


class TargetTask(task.DigitsTask):
    """A task that assigns images to the classes of one target."""

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        images, labels = data.load_examples(params, "class")
        if self.task_config.target == "parity":
            labels = labels % 2
        return digits.batches_of((images, labels), params, input_context)


class DigitsTasks(multitask.MultiTask):
    """The targets of a config and their models."""

    @classmethod
    def from_config(cls, config: Any, logging_dir: str | None = None) -> Self:
        made = super().from_config(config, logging_dir)
        made.task_config = config
        return made

    def build_multitask_model(self) -> model.DigitsModels:
        """Build a model for each target."""
        return model.DigitsModels(
            self.task_config.model,
            {name: NUM_CLASSES[one.task_config.target] for name, one in self.tasks.items()},
        )


# This module-level name is registered, because a registration can't name a class method.
make_tasks = DigitsTasks.from_config
