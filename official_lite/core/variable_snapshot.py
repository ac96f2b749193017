"""What a compiled function may change, and how to put it back."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

__all__ = ["VariableSnapshot"]


class VariableSnapshot:
    """The values of all variables that compiled functions can touch.

    Not only what a checkpoint holds: metrics, sums that reports wait for and variables that nothing
    else knows of are among them. On a CPU it costs no copy, since a value that is still in use is
    not overwritten.

    Args:
        functions: Concrete functions.
    """

    def __init__(self, functions: Iterable[Any]) -> None:
        handles = {
            id(handle): handle
            for function in functions
            for handle in function.captured_inputs
            if handle.dtype == tf.resource and _value_dtype(handle) is not None
        }
        self._values = [
            (handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=_value_dtype(handle)))
            for handle in handles.values()
        ]

    def restore(self) -> None:
        """Gives all of them the values that they had."""
        for handle, value in self._values:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def __len__(self) -> int:
        return len(self._values)


def _value_dtype(handle: Any) -> tf.DType | None:
    """The type of the variable's value; None for a resource that is no variable."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return tf.dtypes.as_dtype(data.shape_and_type[0].dtype)
