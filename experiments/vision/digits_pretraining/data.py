"""The digits of scikit-learn, treated as if most of them had no label."""

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
    """Build batches of images and targets, shifted and repeated for training."""
    return digits.batches_of(load_examples(params, objective), params, input_context)


def load_examples(
    params: configs.FewLabelsDataConfig, objective: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and the target of each: its class, or its flattened pixels."""
    images, labels = digits.load_split(params.split)
    if params.labels_per_class:
        kept = _first_of_each_class(labels, params.labels_per_class)
        images, labels = images[kept], labels[kept]
    return images, images.reshape(len(images), -1) if objective == "image" else labels


def _first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the first `count` labels of each class, in ascending order."""
    found = [np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]
    return np.sort(np.concatenate(found))
