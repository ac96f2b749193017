"""An evaluation that was broken off: the checkpoint says so, and the next run begins with it."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

__all__ = ["find_mark", "marked"]

_NAME = "evaluation_is_pending"


@contextlib.contextmanager
def marked(checkpoint: tf.train.Checkpoint) -> Iterator[tf.Variable]:
    """What is saved within it says that the evaluation at its step has yet to be made."""
    mark = tf.Variable(True, trainable=False)
    setattr(checkpoint, _NAME, mark)
    try:
        yield mark
    finally:
        delattr(checkpoint, _NAME)


def find_mark(checkpoint: tf.train.Checkpoint, path: str) -> tf.Variable | None:
    """The mark in what was restored from `path`, if it has one.

    Keep it: TensorFlow warns of values in a checkpoint that nothing was restored with.
    """
    reader = tf.train.load_checkpoint(path)
    if not reader.has_tensor(f"{_NAME}/.ATTRIBUTES/VARIABLE_VALUE"):
        return None
    with marked(checkpoint) as mark:
        return mark
