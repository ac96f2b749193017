"""The digits that come with scikit-learn, as a dataset."""

import functools

import numpy as np
import tensorflow as tf

from experiments.vision.classification import random_images
from experiments.vision.digits import configs
from official_lite.common import errors, suggestions
from official_lite.core import input_reader
from official_lite.data import position

__all__ = ["IMAGE_SHAPE", "NUM_CLASSES", "batches_of", "build_dataset", "load_split"]

IMAGE_SHAPE = (8, 8, 1)
NUM_CLASSES = 10
NUM_VALIDATION_EXAMPLES = 360


def load_split(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images, float32 in [0, 1] of shape (n, 8, 8, 1), and labels, int32 of shape (n,).

    Every fifth digit is used for validation, so both splits cover the whole file.
    """
    images, labels = _load_all()
    is_validation = np.arange(len(labels)) % 5 == 0
    masks = {"train": ~is_validation, "validation": is_validation}
    if split not in masks:
        raise errors.ConfigValueError(
            f"`split` is {split!r}. {suggestions.did_you_mean(split, masks)}"
        )
    return images[masks[split]], labels[masks[split]]


def build_dataset(
    params: configs.DigitsDataConfig, input_context: tf.distribute.InputContext | None = None
) -> tf.data.Dataset:
    """Build batches of `(images, labels)`, shuffled, shifted and repeated for training."""
    return batches_of(load_split(params.split), params, input_context)


def batches_of(
    examples: tuple[np.ndarray, np.ndarray],
    params: configs.DigitsDataConfig,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches like `build_dataset`, from the given images and labels."""

    def shift(seed: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = batch
        return random_images.shift(images, params.max_shift, seed), labels

    dataset = input_reader.from_arrays(examples, params, input_context)
    if params.max_shift:
        seed = params.seed or 0
        dataset = position.map_batches(dataset, shift, input_context, seed=seed)
    return dataset.prefetch(2)


@functools.cache
def _load_all() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise errors.DataError(
            "The digits dataset requires scikit-learn, which is not installed. Run "
            "`pip install 'official-lite[experiments]'`."
        ) from error
    digits = datasets.load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
    return images, digits.target.astype(np.int32)
