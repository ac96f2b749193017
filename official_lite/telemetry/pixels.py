"""Conversion of images to pixel values."""

from typing import Any

import tensorflow as tf

from official_lite.common import errors

__all__ = ["to_pixels"]


def to_pixels(name: str, image: Any) -> tf.Tensor:
    """Convert one image to pixel values from 0 to 255.

    Args:
      name: Name of the image in error messages.
      image: `[height, width, channels]` with 1, 3 or 4 channels, or a batch of such images, of
        which the first is used. Floating point from 0 to 1 (values outside are clipped, NaN becomes
        black), or uint8.

    Returns:
      `[height, width, channels]`, float32, integer values.

    Raises:
      errors.ConfigValueError: The image has another shape or type, or its size is unknown in a
        graph.
    """
    image = tf.convert_to_tensor(image)
    if image.shape.rank == 4:
        image = image[0]
    _check(name, image)
    if image.dtype == tf.uint8:
        return tf.cast(image, tf.float32)
    image = tf.cast(image, tf.float32)
    image = tf.where(tf.math.is_nan(image), tf.zeros_like(image), image)
    return tf.round(255.0 * tf.clip_by_value(image, 0.0, 1.0))


def _check(name: str, image: tf.Tensor) -> None:
    if image.shape.rank != 3 or image.shape[2] not in (1, 3, 4, None):
        raise errors.ConfigValueError(
            f"The image `{name}` has the shape {image.shape}; it must be [height, width, channels] "
            "with 1, 3 or 4 channels, or a batch of such images."
        )
    if not image.shape.is_fully_defined():
        raise errors.ConfigValueError(
            f"The image `{name}` has the shape {image.shape} in the graph; its size must be known "
            "there. `tf.ensure_shape`, `tf.image.resize` or a crop gives it one."
        )
    if not (image.dtype.is_floating or image.dtype == tf.uint8):
        raise errors.ConfigValueError(
            f"The image `{name}` is of type {image.dtype.name}; it must be floating point from 0 "
            "to 1, or uint8."
        )
