"""CIFAR-10 from the files of its Python version or from TensorFlow Datasets."""

import os
import pathlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from experiments.vision.classification import random_images
from experiments.vision.resnet_cifar10 import configs
from official_lite.common import errors
from official_lite.core import input_reader
from official_lite.data import position

__all__ = ["IMAGE_SHAPE", "NUM_CLASSES", "build_dataset", "load_split"]

IMAGE_SHAPE = (32, 32, 3)
NUM_CLASSES = 10

_FILES = {"train": "data_batch_*", "test": "test_batch"}


def build_dataset(
    params: configs.Cifar10DataConfig, input_context: tf.distribute.InputContext | None = None
) -> tf.data.Dataset:
    """Build batches of `(images, labels)`, float32 in [0, 255] and int32.

    For training they are shuffled, changed at random and repeated.
    """
    if params.tfds_name:
        examples = input_reader.InputReader(params).read(input_context)
        batches = examples.map(lambda batch: (batch["image"], batch["label"]))
    else:
        batches = input_reader.from_arrays(
            load_split(str(params.input_path), params.split), params, input_context
        )
    if params.is_training:
        change = _change_at_random(params)
        batches = position.map_batches(batches, change, input_context, seed=params.seed)
    return batches.map(_cast).prefetch(2)


def load_split(directory: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 of shape (n, 32, 32, 3), and labels, int32 of shape (n,).

    Args:
        directory: The directory with `test_batch` and the files `data_batch_1` and so on.
        split: `train` or `test`.

    Raises:
        DataError: If the files are missing.
    """
    paths = sorted(pathlib.Path(os.path.expanduser(directory)).glob(_FILES[split]))
    if not paths:
        raise errors.DataError(
            f"The file `{_FILES[split]}` of CIFAR-10 is missing in {directory!r}. To download it, "
            "call `keras.datasets.cifar10.load_data()` in Python, which writes to "
            f"{configs.Cifar10Config().train_data.input_path}. For another directory, set "
            "`input_path` of the training and the validation data."
        )
    parts = [_read_file(path) for path in paths]
    images = np.concatenate([images for images, _ in parts])
    return images, np.concatenate([labels for _, labels in parts])


def _change_at_random(params: configs.Cifar10DataConfig) -> Callable[..., Any]:
    def change(seed: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> Any:
        images, labels = batch
        seeds = tf.random.experimental.stateless_split(seed, num=2)
        if params.max_shift:
            images = random_images.shift(images, params.max_shift, seeds[0])
        if params.random_flip:
            images = random_images.flip(images, seeds[1])
        return images, labels

    return change


def _cast(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(images, tf.float32), tf.cast(labels, tf.int32)


def _read_file(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    with path.open("rb") as file:
        content = _ArrayUnpickler(file, encoding="bytes").load()
    pixels = np.asarray(content[b"data"], np.uint8)
    # For each image, the files store all red values, then all green and then all blue ones.
    images = pixels.reshape(-1, 3, *IMAGE_SHAPE[:2]).transpose(0, 2, 3, 1)
    return images, np.asarray(content[b"labels"], np.int32)


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler that builds only NumPy arrays, so that a file can't run code."""

    _ALLOWED: ClassVar[Mapping[str, Any]] = {
        "_reconstruct": np.empty(0).__reduce__()[0],
        "ndarray": np.ndarray,
        "dtype": np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in self._ALLOWED:
            return self._ALLOWED[name]
        raise errors.DataError(
            f"{module}.{name} is not allowed in a CIFAR-10 file; expected only NumPy arrays."
        )
