"""The digits that come with scikit-learn, as a dataset."""

import functools

import numpy as np
import tensorflow as tf

from experiments.vision.digits import configs
from official_lite.common import errors, suggestions

__all__ = ["IMAGE_SHAPE", "NUM_CLASSES", "build_dataset", "load_split"]

IMAGE_SHAPE = (8, 8, 1)
NUM_CLASSES = 10
NUM_VALIDATION_EXAMPLES = 360


def load_split(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images, float32 in [0, 1] of shape (n, 8, 8, 1), and labels, int32 of shape (n,).

    Every fifth digit is for validation, so that both parts come from all over the file.
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
    """Batches of `(images, labels)`; shuffled, shifted and repeated for training."""
    images, labels = load_split(params.split)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    batch_size = params.global_batch_size
    if input_context:
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
        batch_size = input_context.get_per_replica_batch_size(batch_size)
    if params.is_training:
        dataset = dataset.shuffle(len(labels), seed=params.seed).repeat()
    if params.max_shift:
        dataset = _shift_at_random(dataset, params.max_shift, params.seed or 0)
    dataset = dataset.batch(batch_size, drop_remainder=params.drop_remainder)
    return dataset.prefetch(tf.data.AUTOTUNE)


def _shift_at_random(dataset: tf.data.Dataset, max_shift: int, seed: int) -> tf.data.Dataset:
    """Shifts each image by a random number that depends only on the seed and its position."""
    margin = [[max_shift, max_shift], [max_shift, max_shift], [0, 0]]

    def shift(
        position: tf.Tensor, example: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        image, label = example
        key = tf.stack([tf.constant(seed, tf.int64), position])
        return tf.image.stateless_random_crop(tf.pad(image, margin), IMAGE_SHAPE, key), label

    return dataset.enumerate().map(shift, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


@functools.cache
def _load_all() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise errors.DataError(
            "The digits come with scikit-learn, which is not installed: "
            "pip install 'official-lite[experiments]'"
        ) from error
    digits = datasets.load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
    return images, digits.target.astype(np.int32)
