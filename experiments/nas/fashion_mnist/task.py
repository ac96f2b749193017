"""The task of classifying Fashion-MNIST by a model with choices."""

import keras

from experiments.nas.fashion_mnist import model
from experiments.vision.classification import task as classification_task
from experiments.vision.fashion_mnist import data
from experiments.vision.fashion_mnist import task as fashion_mnist_task
from official_lite import nas

__all__ = ["NasFashionMnistTask"]


class NasFashionMnistTask(fashion_mnist_task.FashionMnistTask):
    """The Fashion-MNIST task with another model; it does not depend on the search."""

    def build_model(self) -> keras.Model:
        config = self.task_config
        with nas.fixed_arch(config.arch):
            built = model.build_model(config.model, data.IMAGE_SHAPE, data.NUM_CLASSES)
        classification_task.decay_kernels(built, config.losses.l2_weight_decay)
        return built
