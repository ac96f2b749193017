"""Context manager that makes Keras losses plain means over the examples of a replica.

Keras 3 divides the loss of a `keras.losses.Loss` object by the number of replicas, because `fit`
sums the gradients of all replicas. A task divides its loss itself, as in the Model Garden. With
both divisions, the loss and the gradients would be too small by a factor of the number of replicas.
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
    """Compute Keras losses in this thread without dividing by the number of replicas."""
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


# Keras has no option for this. It looks the functions up in their module on each use, so replace
# them there.
for _name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
    setattr(keras_loss, _name, _unless_told(getattr(keras_loss, _name)))
