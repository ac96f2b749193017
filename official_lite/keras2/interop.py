"""TensorFlow functions on symbolic Keras tensors, and Keras variables as TensorFlow variables.

Keras 2 allows both.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

# Methods with which `tf.gather` would read a variable directly, bypassing stateless scopes and
# autocasting.
_READS = ("gather_nd", "sparse_read")


class TFFunction(keras.layers.Layer):
    """A layer that calls a TensorFlow function on its input tensors.

    It can't be saved in a `.keras` file: build the model by its code, and load the weights.

    Args:
        function: The function.
        arguments: The positional and keyword arguments, in which `keras.KerasTensor`s stand for the
            inputs of the layer.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Sequence[Any], Mapping[str, Any]]
    ) -> None:
        # Disable autocasting, which could change the result of the function.
        super().__init__(autocast=False)
        self._function = function
        self.__dict__["_arguments"] = arguments

    def compute_output_spec(self, tensors: Sequence[keras.KerasTensor]) -> Any:
        """Trace the function with dense tensors, because Keras wrongly marks `2 * x` as sparse."""
        dense = [keras.KerasTensor(one.shape, one.dtype) for one in tensors]
        return super().compute_output_spec(dense)

    def call(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Call the function with `tensors` in place of the symbolic ones, in their order."""
        given = iter(tensors)
        args, kwargs = tf.nest.map_structure(
            lambda one: next(given) if isinstance(one, keras.KerasTensor) else one,
            self.__dict__["_arguments"],
        )
        return self._function(*args, **kwargs)


class _OnSymbolicTensors(tf.__internal__.dispatch.GlobalOpDispatcher):
    """A dispatcher that turns TensorFlow calls on `keras.KerasTensor`s into `TFFunction` layers."""

    def handle(self, op: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        # Drop the name of the operation, because the layer has its own name.
        arguments = (args, {key: value for key, value in kwargs.items() if key != "name"})
        tensors = _symbolic_tensors(arguments)
        return TFFunction(op, arguments)(tensors) if tensors else self.NOT_SUPPORTED


_DISPATCHERS: list[_OnSymbolicTensors] = []


def _symbolic_tensors(arguments: Any) -> list[keras.KerasTensor]:
    return [one for one in tf.nest.flatten(arguments) if isinstance(one, keras.KerasTensor)]


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, as a `TFFunction` if an argument contains a symbolic tensor."""
    tensors = _symbolic_tensors((args, kwargs))
    return TFFunction(function, (args, kwargs))(tensors) if tensors else function(*args, **kwargs)


def accept_symbolic_tensors() -> None:
    """Make TensorFlow functions accept symbolic Keras tensors, as they do with Keras 2.

    Such a call becomes a `TFFunction` of the model. Calling this function again has no effect.
    """
    if not _DISPATCHERS:
        _DISPATCHERS.append(_OnSymbolicTensors())
        _DISPATCHERS[0].register()


def have_attributes_of_tensorflow() -> None:
    """Give each `keras.Variable` the methods and attributes of its `tf.Variable`, such as `ref`.

    What Keras itself defines, such as `name`, stays as it is.
    """
    keras_variable: Any = keras.Variable
    keras_variable.__getattr__ = _attribute


def _attribute(variable: keras.Variable, name: str) -> Any:
    value = vars(variable).get("_value")
    # Do not forward special methods, checkpoint state, and the methods in `_READS` to the
    # underlying `tf.Variable`.
    if value is None or name.startswith(("__", "_self_", *_READS)):
        raise AttributeError(f"{type(variable).__name__!r} object has no attribute {name!r}")
    return getattr(value, name)
