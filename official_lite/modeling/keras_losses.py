"""Losses of Keras as plain means over the examples of a replica.

Keras 3 divides the loss of a `keras.losses.Loss` object by the number of replicas, as `fit` adds
up the gradients of all replicas. A task divides its loss by itself, as in the Model Garden: with
both, loss and gradients under several replicas would be too small by that number.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf
from keras.src.losses import loss as keras_loss

__all__ = ["undivided"]

_state = threading.local()


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """Compute losses of Keras without a division by the number of replicas, on this thread."""
    before = getattr(_state, "is_undivided", False)
    _state.is_undivided = True
    try:
        yield
    finally:
        _state.is_undivided = before


def _unless_told(scale: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    @functools.wraps(scale)
    def scale_unless_told(value: tf.Tensor) -> tf.Tensor:
        return value if getattr(_state, "is_undivided", False) else scale(value)

    return scale_unless_told


# Keras has no switch for it, and looks the functions up in their module whenever it needs them.
for _name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
    setattr(keras_loss, _name, _unless_told(getattr(keras_loss, _name)))
