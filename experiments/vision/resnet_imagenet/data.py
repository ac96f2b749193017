"""Images of ImageNet, cropped and scaled to one size.

Only the cropped part of a JPEG is decoded. Random choices depend only on the seed and the image's
position in training, so a resumed run sees the same images as an uninterrupted one.
"""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from experiments.vision.classification import random_images
from experiments.vision.resnet_imagenet import configs
from official_lite.core import input_reader
from official_lite.data import position, replicas

__all__ = ["build_dataset"]

Example = Mapping[str, tf.Tensor]

_ASPECT_RATIO_RANGE = (3 / 4, 4 / 3)
_MAX_ATTEMPTS = 10


def build_dataset(
    params: configs.ImageNetDataConfig,
    input_size: tuple[int, int],
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of images, float32 in [0, 255], `(batch, *input_size, 3)`, and int32 labels."""
    if not params.is_training:
        center = functools.partial(_look_at_center, params, input_size)
        return _read(params, input_context, parser_fn=center)
    change = functools.partial(_change_at_random, params, input_size)
    if params.enable_tf_data_service:
        # The workers of the service make the random changes. They use no seed, because the order of
        # the images differs in each run anyway.
        return _read(params, input_context, parser_fn=lambda example: change(_any_seed(), example))
    encoded = _read(params, input_context)
    numbered = position.enumerate_batches(encoded, input_context)
    examples = numbered.map(_seed_each(random_images.seed_of(params))).unbatch()
    images = examples.map(change, num_parallel_calls=os.cpu_count(), deterministic=True)
    size = replicas.per_replica_batch_size(params.global_batch_size, input_context)
    batches = images.batch(size, drop_remainder=True)
    # The new batches hold the images of the encoded ones, so they also begin at the position.
    # `position.keep` can't detect this after `unbatch` and would decode all earlier images again.
    position.mark_begin(batches)
    return batches.prefetch(2)


def _read(
    params: configs.ImageNetDataConfig,
    input_context: tf.distribute.InputContext | None,
    parser_fn: Callable[[Example], Any] | None = None,
) -> tf.data.Dataset:
    """Read batches of examples, or of the results of `parser_fn` for the examples."""
    decoder_fn = None
    if not params.tfds_name:
        features = {
            params.image_field_key: tf.io.FixedLenFeature([], tf.string),
            params.label_field_key: tf.io.FixedLenFeature([], tf.int64),
        }
        decoder_fn = input_reader.FeatureDecoder(features).decode
    reader = input_reader.InputReader(params, decoder_fn=decoder_fn, parser_fn=parser_fn)
    return reader.read(input_context)


def _seed_each(seed: int) -> Callable[..., Any]:
    """Return a function from numbered batches to batches of `(seed, example)`."""

    def number(batch_number: tf.Tensor, batch: Example) -> tuple[tf.Tensor, Example]:
        size = tf.shape(next(iter(batch.values())), out_type=tf.int64)[0]
        numbers = batch_number * size + tf.range(size)
        return tf.stack([tf.fill([size], tf.constant(seed, tf.int64)), numbers], axis=1), batch

    return number


def _any_seed() -> tf.Tensor:
    return tf.random.uniform([2], maxval=tf.int64.max, dtype=tf.int64)


def _change_at_random(
    params: configs.ImageNetDataConfig,
    input_size: tuple[int, int],
    seed: tf.Tensor,
    example: Example,
) -> tuple[tf.Tensor, tf.Tensor]:
    encoded, label = _image_and_label(params, example)
    seeds = tf.random.experimental.stateless_split(seed, num=2)
    shape = tf.io.extract_jpeg_shape(encoded)
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seeds[0],
        min_object_covered=params.crop_area_range[0],
        aspect_ratio_range=_ASPECT_RATIO_RANGE,
        area_range=params.crop_area_range,
        max_attempts=_MAX_ATTEMPTS,
    )
    window = tf.concat([begin[:2], size[:2]], axis=0)
    # The op returns the whole image if it found no crop in `_MAX_ATTEMPTS` attempts.
    is_whole = tf.reduce_all(size[:2] == shape[:2])
    window = tf.where(is_whole, _center_window(params, shape), window)
    image = _decode(encoded, window, input_size)
    if params.aug_rand_hflip:
        image = tf.image.stateless_random_flip_left_right(image, seeds[1])
    return image, label


def _look_at_center(
    params: configs.ImageNetDataConfig, input_size: tuple[int, int], example: Example
) -> tuple[tf.Tensor, tf.Tensor]:
    encoded, label = _image_and_label(params, example)
    window = _center_window(params, tf.io.extract_jpeg_shape(encoded))
    return _decode(encoded, window, input_size), label


def _image_and_label(
    params: configs.ImageNetDataConfig, example: Example
) -> tuple[tf.Tensor, tf.Tensor]:
    image_key, label_key = params.image_field_key, params.label_field_key
    if params.tfds_name:
        image_key, label_key = "image", "label"
    return example[image_key], tf.cast(example[label_key], tf.int32)


def _center_window(params: configs.ImageNetDataConfig, shape: tf.Tensor) -> tf.Tensor:
    """Return the first row, the first column, the height and the width of the center square."""
    shortest = tf.cast(tf.reduce_min(shape[:2]), tf.float32)
    side = tf.maximum(tf.cast(params.center_crop_fraction * shortest, tf.int32), 1)
    return tf.concat([(shape[:2] - side) // 2, [side, side]], axis=0)


def _decode(encoded: tf.Tensor, window: tf.Tensor, input_size: tuple[int, int]) -> tf.Tensor:
    image = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
    image = tf.image.resize(image, input_size)
    return tf.ensure_shape(image, [*input_size, 3])
