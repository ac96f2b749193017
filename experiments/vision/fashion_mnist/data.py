"""Fashion-MNIST from its four original files."""

import functools
import gzip
import os
import pathlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from experiments.vision.classification import random_images
from experiments.vision.fashion_mnist import configs
from official_lite.common import errors
from official_lite.core import input_reader
from official_lite.data import position

__all__ = ["IMAGE_SHAPE", "NUM_CLASSES", "build_dataset", "load_split"]

IMAGE_SHAPE = (28, 28, 1)
NUM_CLASSES = 10

_FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}


def build_dataset(
    examples: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]],
    params: configs.FashionMnistDataConfig,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of `(images, labels)`, float32 in [0, 255] and int32.

    For training they are shuffled, changed at random and repeated.

    Args:
        examples: Images and labels, as `load_split` returns them.
        params: The config of the data.
        input_context: The index of this input pipeline and the number of pipelines.
    """
    batches = input_reader.from_arrays(examples, params, input_context)
    if params.is_training:
        change = _change_at_random(params)
        batches = position.map_batches(batches, change, input_context, seed=params.seed)
    return batches.map(_cast).prefetch(2)


# Cached, because a trainer requests its data more than once.
@functools.lru_cache(maxsize=2)
def load_split(directory: str, split: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return images of shape (n, 28, 28, 1) and labels of shape (n,).

    Args:
        directory: The directory of the four files.
        split: `train` or `test`.

    Raises:
        DataError: If a file is missing, damaged or of another format.
    """
    paths = [pathlib.Path(os.path.expanduser(directory)) / name for name in _FILES[split]]
    if missing := [path.name for path in paths if not path.exists()]:
        raise errors.DataError(
            f"Fashion-MNIST is incomplete in {directory!r}, which lacks {' and '.join(missing)}. "
            "Set `task.input_path` to a directory with the four files of "
            "https://github.com/zalandoresearch/fashion-mnist, or install Debian's package "
            f"`dataset-fashion-mnist`, which puts them into {configs.DEBIAN_DIRECTORY}."
        )
    images, labels = (_read_idx(path) for path in paths)
    if images.shape[1:] != IMAGE_SHAPE[:2]:
        raise errors.DataError(
            f"{paths[0]} contains an array of shape {images.shape}; expected images of 28×28 "
            "pixels."
        )
    if labels.shape != images.shape[:1]:
        raise errors.DataError(
            f"{paths[1]} contains an array of shape {labels.shape}; expected one label for each of "
            f"the {len(images)} images in {paths[0].name}."
        )
    if labels.max(initial=0) >= NUM_CLASSES:
        raise errors.DataError(
            f"{paths[1]} contains the label {labels.max()}; expected 0 to {NUM_CLASSES - 1}."
        )
    return images.reshape(-1, *IMAGE_SHAPE), labels.astype(np.int32)


def _read_idx(path: pathlib.Path) -> npt.NDArray[np.uint8]:
    """Read an IDX file: two zeros, the type, the rank, the shape (big-endian) and the bytes."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise errors.DataError(
            f"{path} is damaged or not a gzip file: {error}. Copy it again from its source."
        ) from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise errors.DataError(
            f"{path} is not an IDX file of bytes: it begins with {content[:4]!r}; expected "
            r"b'\x00\x00\x08' and the number of dimensions."
        )
    begin = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:begin], ">u4"))
    values = np.frombuffer(content[begin:], np.uint8)
    if len(shape) != content[3] or len(values) != np.prod(shape, dtype=np.int64):
        raise errors.DataError(
            f"{path} has {len(values)} values after its header, which announces an array of shape "
            f"{shape}. Copy it again from its source."
        )
    return values.reshape(shape)


def _change_at_random(params: configs.FashionMnistDataConfig) -> Callable[..., Any]:
    def change(seed: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> Any:
        images, labels = batch
        seeds = tf.random.experimental.stateless_split(seed, num=3)
        if params.max_shift:
            images = random_images.shift(images, params.max_shift, seeds[0])
        if params.random_flip:
            images = random_images.flip(images, seeds[1])
        if params.erase_size:
            images = random_images.erase(images, params.erase_size, seeds[2])
        return images, labels

    return change


def _cast(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(images, tf.float32), labels
