"""Keras variables that several processes can add to at the same time.

Keras 3 adds to a variable by reading it, adding, and assigning the sum. Under a parameter server,
another worker may add to the variable between the read and the assignment, and that addition is
lost. About a tenth of the increments of an optimizer's `iterations` are lost this way, which
distorts learning-rate schedules, Adam's bias correction and the decay of averages. The counts and
sums of metrics are affected too.
"""

import functools
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import stateless_scope

__all__ = ["make_atomic"]


def make_atomic(variables: Iterable[Any]) -> None:
    """Make additions to the given Keras variables atomic; other objects are left unchanged.

    This covers `variable.assign_add(x)` and `variable.assign(variable + x)`. Each variable remains
    the same object, but its class becomes a subclass of its original class. Calling this function
    twice has no further effect.
    """
    for variable in variables:
        if isinstance(variable, keras.Variable) and not isinstance(variable, _AtomicCounters):
            variable_cls: Any = type(variable)
            variable.__class__ = _atomic_class(variable_cls)


class _AtomicCounters:
    """Mixin for classes of Keras variables, listed before the variable class among the bases."""

    # Keras' underlying variable, without the automatic cast of mixed precision.
    _value: tf.Variable
    # The result of the latest addition to the variable, and the added value.
    _sum: tuple[Any, Any] | None = None

    def __add__(self, other: tf.Tensor | float) -> tf.Tensor:
        variable: Any = super()
        result = variable.__add__(other)
        self._sum = result, other
        return result

    def assign(self, value: tf.Tensor) -> tf.Tensor:
        """Assign the value; add instead if it is the sum of the variable and another value."""
        last_sum, self._sum = self._sum, None
        if last_sum is None or value is not last_sum[0] or stateless_scope.in_stateless_scope():
            variable: Any = super()
            return variable.assign(value)
        self._add(last_sum[1])
        return value

    def assign_add(self, value: tf.Tensor) -> tf.Tensor:
        """Add the value atomically."""
        if stateless_scope.in_stateless_scope():
            variable: Any = super()
            return variable.assign_add(value)
        return self._add(value)

    def _add(self, value: tf.Tensor) -> tf.Tensor:
        value = keras.ops.convert_to_tensor(value)
        value = tf.broadcast_to(tf.cast(value, self._value.dtype), self._value.shape)
        return self._value.assign_add(value)


@functools.cache
def _atomic_class(variable_cls: type[keras.Variable]) -> type[keras.Variable]:
    # Keep the name of the class, which is recorded when a variable is saved.
    namespace = {"__module__": variable_cls.__module__, "__qualname__": variable_cls.__qualname__}
    return type(variable_cls.__name__, (_AtomicCounters, variable_cls), namespace)
