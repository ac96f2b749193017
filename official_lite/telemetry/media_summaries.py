"""TensorBoard summaries of images and histograms."""

from typing import Any

import numpy as np
import tensorflow as tf

from official_lite.telemetry.event_storage import Events
from official_lite.telemetry.histogram import Histogram
from official_lite.telemetry.record import Record

__all__ = ["histogram_summary", "image_summary", "write_media"]


def write_media(media: Record | Events, step: Any = None) -> None:
    """Write images and histograms to the default summary writer.

    Args:
      media: A `Record` or `Events` with `images` and `histograms`.
      step: The step. Defaults to the one set by `tf.summary.experimental.set_step`.
    """
    for name, image in media.images.items():
        image_summary(name, image, step=step)
    for name, histogram in media.histograms.items():
        histogram_summary(name, histogram, step=step)


def image_summary(name: str, image: Any, *, step: Any = None) -> Any:
    """Write the same summary as `tf.summary.image`, without requiring TensorBoard.

    Args:
      name: The tag.
      image: `[height, width, channels]`, uint8.
      step: The step. Defaults to the one set by `tf.summary.experimental.set_step`.
    """
    height, width = np.shape(image)[:2]
    png = tf.io.encode_png(image)
    tensor = tf.stack([tf.constant(str(width)), tf.constant(str(height)), png])
    return _write(name, tensor, step, plugin="images")


def histogram_summary(name: str, histogram: Histogram, *, step: Any = None) -> Any:
    """Write the same summary as `tf.summary.histogram`, without requiring TensorBoard.

    Args:
      name: The tag.
      histogram: The histogram to write.
      step: The step. Defaults to the one set by `tf.summary.experimental.set_step`.
    """
    edges = histogram.edges
    buckets = tf.constant(np.stack([edges[:-1], edges[1:], histogram.counts], axis=1))
    return _write(name, buckets, step, plugin="histograms")


def _write(name: str, tensor: tf.Tensor, step: Any, *, plugin: str) -> Any:
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    return tf.summary.write(name, tensor, step=step, metadata=metadata)
