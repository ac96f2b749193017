"""Keras variables to which several processes may add at the same time.

Keras 3 adds to a variable by reading it, adding, and assigning the sum. Under a parameter server
another worker may have added something between the two, which is then lost: about a tenth of an
optimizer's `iterations`, and with them the learning rate of a schedule, the correction of Adam's
bias and the decay of averages. Counts and sums of metrics are made in the same way.
"""

import functools
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import stateless_scope

__all__ = ["make_atomic"]


def make_atomic(variables: Iterable[Any]) -> None:
    """Has sums be made where the variable is, at once; what is no Keras variable is left alone.

    That is `variable.assign_add(x)`, and `variable.assign(variable + x)`. Each variable stays the
    same object, and becomes an instance of a subclass of its class. Doing it twice does no harm.
    """
    for variable in variables:
        if isinstance(variable, keras.Variable) and not isinstance(variable, _AtomicSums):
            variable_cls: Any = type(variable)
            variable.__class__ = _atomic_class(variable_cls)


class _AtomicSums:
    """Mixin before a class of Keras variables, which `super()` is."""

    # Of Keras'; without the cast of mixed precision.
    _value: tf.Variable
    # The last sum of the variable and something else, and that.
    _sum: tuple[Any, Any] | None = None

    def __add__(self, other: Any) -> Any:
        variable: Any = super()
        result = variable.__add__(other)
        self._sum = result, other
        return result

    def assign(self, value: Any) -> Any:
        """Assigns; adds if it is to be the sum of the variable and something else."""
        last_sum, self._sum = self._sum, None
        if last_sum is None or value is not last_sum[0] or stateless_scope.in_stateless_scope():
            variable: Any = super()
            return variable.assign(value)
        self._add(last_sum[1])
        return value

    def assign_add(self, value: Any) -> Any:
        """Adds."""
        if stateless_scope.in_stateless_scope():
            variable: Any = super()
            return variable.assign_add(value)
        return self._add(value)

    def _add(self, value: Any) -> Any:
        value = keras.ops.convert_to_tensor(value)
        value = tf.broadcast_to(tf.cast(value, self._value.dtype), self._value.shape)
        return self._value.assign_add(value)


@functools.cache
def _atomic_class(variable_cls: Any) -> Any:
    # Under the name of its class, which is written down when a variable is saved.
    namespace = {"__module__": variable_cls.__module__, "__qualname__": variable_cls.__qualname__}
    return type(variable_cls.__name__, (_AtomicSums, variable_cls), namespace)
