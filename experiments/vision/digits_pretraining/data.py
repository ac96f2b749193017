"""The digits of scikit-learn, as if most of them had no label."""

import numpy as np
import tensorflow as tf

from experiments.vision.digits import data as digits
from experiments.vision.digits_pretraining import configs

__all__ = ["build_dataset", "load_examples"]


def build_dataset(
    params: configs.FewLabelsDataConfig,
    objective: str,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Batches of images and what is to be told of them; for training shifted, and repeated."""
    return digits.batches_of(load_examples(params, objective), params, input_context)


def load_examples(
    params: configs.FewLabelsDataConfig, objective: str
) -> tuple[np.ndarray, np.ndarray]:
    """The images, and what is to be told of each: its class, or its pixels in a row."""
    images, labels = digits.load_split(params.split)
    if params.labels_per_class:
        kept = _first_of_each_class(labels, params.labels_per_class)
        images, labels = images[kept], labels[kept]
    return images, images.reshape(len(images), -1) if objective == "image" else labels


def _first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    """Where the first labels of each class are, in ascending order."""
    found = [np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]
    return np.sort(np.concatenate(found))
