"""Seeded random changes of a batch of images."""

import tensorflow as tf

from official_lite.core import config_definitions as cfg
from official_lite.data import position

__all__ = ["erase", "flip", "seed_of", "shift"]


def seed_of(params: cfg.DataConfig) -> int:
    """Return the seed for random changes: the seed of the data or, if it is None, of the run."""
    begin = position.current()
    if params.seed is None and begin is not None:
        return begin.seed
    return params.seed or 0


def shift(images: tf.Tensor, max_shift: int, seed: tf.Tensor) -> tf.Tensor:
    """Shift each image by up to `max_shift` pixels in each direction, filling with 0."""
    margin = [[0, 0], [max_shift, max_shift], [max_shift, max_shift], [0, 0]]
    height, width = images.shape[1:3]
    offsets = tf.random.stateless_uniform(
        [tf.shape(images)[0], 2], seed, maxval=2 * max_shift + 1, dtype=tf.int32
    )
    rows = offsets[:, :1] + tf.range(height)
    columns = offsets[:, 1:] + tf.range(width)
    images = tf.gather(tf.pad(images, margin), rows, axis=1, batch_dims=1)
    return tf.gather(images, columns, axis=2, batch_dims=1)


def flip(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Flip about half of the images left to right."""
    is_flipped = tf.random.stateless_uniform([tf.shape(images)[0], 1, 1, 1], seed) < 0.5
    return tf.where(is_flipped, tf.reverse(images, [2]), images)


def erase(images: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Set a square of `size` pixels a side to 0, with its center anywhere in the image.

    The square may extend beyond the border (https://arxiv.org/abs/1708.04552).
    """
    height, width = images.shape[1:3]
    positions = tf.random.stateless_uniform([2, tf.shape(images)[0], 1], seed)

    def is_inside(position: tf.Tensor, length: int) -> tf.Tensor:
        begin = tf.cast(position * length, tf.int32) - size // 2
        index = tf.range(length)
        return (index >= begin) & (index < begin + size)

    rows, columns = is_inside(positions[0], height), is_inside(positions[1], width)
    is_erased = rows[:, :, tf.newaxis, tf.newaxis] & columns[:, tf.newaxis, :, tf.newaxis]
    return tf.where(is_erased, tf.zeros([], images.dtype), images)
