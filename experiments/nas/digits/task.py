"""The task of classifying handwritten digits by a model with choices."""

import keras

from experiments.nas.digits import model
from experiments.vision.digits import data
from experiments.vision.digits import task as digits_task
from official_lite import nas

__all__ = ["NasDigitsTask"]


class NasDigitsTask(digits_task.DigitsTask):
    """The digits task with another model; it does not depend on the search."""

    def build_model(self) -> keras.Model:
        with nas.fixed_arch(self.task_config.arch):
            return model.build_model(self.task_config.model, data.IMAGE_SHAPE, data.NUM_CLASSES)
