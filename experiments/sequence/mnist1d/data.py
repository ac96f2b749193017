"""The curves of MNIST-1D, and random changes of them."""

import functools
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from experiments.sequence.mnist1d import configs
from official_lite.common import errors
from official_lite.core import input_reader
from official_lite.data import position

__all__ = ["FILE", "NUM_CLASSES", "NUM_POINTS", "build_dataset", "change_at_random", "load_split"]

FILE = "mnist1d.npz"
NUM_POINTS = 40
NUM_CLASSES = 10

# The names that the generator gives to the curves and the labels of each split.
_NAMES = {"train": ("x", "y"), "test": ("x_test", "y_test")}


def build_dataset(
    directory: str,
    params: configs.Mnist1dDataConfig,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of `(curves, labels)`, shuffled, changed at random and repeated for training.

    Curves are float32 of shape `(batch, 40, 1)`, labels are int32.
    """
    batches = input_reader.from_arrays(
        load_split(directory, params.split.lower()), params, input_context
    )
    if params.is_training:
        change = functools.partial(change_at_random, params)
        batches = position.map_batches(batches, change, input_context, seed=params.seed)
    return batches.prefetch(2)


def load_split(directory: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return curves, float32 of shape (n, 40, 1), and labels, int32 of shape (n,).

    Args:
        directory: The directory with `mnist1d.npz`.
        split: `train` or `test`.

    Raises:
        DataError: If the file is missing or has other contents.
    """
    path = pathlib.Path(directory, FILE).expanduser()
    if not path.exists():
        raise errors.DataError(
            f"There is no file {path}. Write it with `python -m experiments.sequence.mnist1d."
            "write_data DIRECTORY`, and set `task.input_path` to that directory."
        )
    with np.load(path) as file:
        missing = [name for name in _NAMES[split] if name not in file]
        if missing:
            raise errors.DataError(
                f"{path} has the arrays {sorted(file)}, but not the arrays {', '.join(missing)} of "
                "MNIST-1D. Write the file with "
                "`python -m experiments.sequence.mnist1d.write_data DIRECTORY`."
            )
        curves, labels = (file[name] for name in _NAMES[split])
    if curves.shape[1:] != (NUM_POINTS,):
        raise errors.DataError(
            f"{path} has curves of shape {curves.shape[1:]}; expected {NUM_POINTS} points."
        )
    return curves[..., np.newaxis].astype(np.float32), labels.astype(np.int32)


def change_at_random(
    params: configs.Mnist1dDataConfig, seed: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]
) -> Any:
    """Shift, scale and shear the curves of a batch, and add noise."""
    curves, labels = batch
    seeds = tf.random.experimental.stateless_split(seed, num=4)
    one_each = [tf.shape(curves)[0], 1, 1]
    if params.max_shift:
        shifts = tf.random.stateless_uniform(
            one_each[:2], seeds[0], -params.max_shift, params.max_shift + 1, tf.int32
        )
        points = (tf.range(NUM_POINTS) - shifts) % NUM_POINTS
        curves = tf.gather(curves, points, axis=1, batch_dims=1)
    if params.max_scale:
        change = tf.random.stateless_uniform(one_each, seeds[1], -1, 1)
        curves *= 1 + params.max_scale * change
    if params.max_shear:
        slope = tf.random.stateless_uniform(one_each, seeds[2], -1, 1)
        line = tf.linspace(-0.5, 0.5, NUM_POINTS)[:, tf.newaxis]
        curves += params.max_shear * slope * tf.cast(line, tf.float32)
    if params.noise:
        curves += params.noise * tf.random.stateless_normal(tf.shape(curves), seeds[3])
    return curves, labels
