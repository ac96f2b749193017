"""Optimizers whose subclasses override `update_step(gradient, variable)`, as in Keras 2."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from official_lite.common import keras_variables

__all__ = ["UpdateStep"]

if TYPE_CHECKING:
    from keras.optimizers import Optimizer as _OptimizerHalf
else:
    # At runtime the mixin derives from `object`; the optimizer provides the other half.
    _OptimizerHalf = object


class UpdateStep(_OptimizerHalf):
    """Mixin that gives a subclass of a Keras optimizer what the new optimizers of Keras 2 have.

    * `update_step(gradient, variable)` has no learning rate among its arguments, and neither has
      `super().update_step(gradient, variable)`.
    * The constructor may be called without a learning rate, and with `jit_compile`.
      `_build_learning_rate` sets the learning rate.
    * `add_variable_from_reference(model_variable, variable_name, shape, initial_value)` returns a
      `tf.Variable`. Its value is converted from checkpoints of Keras 2.
    * `_index_dict[_var_key(variable)]` is the index of a variable.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "update_step" in cls.__dict__:
            _replace_update_step(cls, cls.__dict__["update_step"])

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("jit_compile", None)
        if args and (args[0] is None or isinstance(args[0], str)):
            # The first argument of the base class of Keras 2.
            kwargs["name"], *args_left = args
            args = tuple(args_left)
        if not args:
            kwargs.setdefault("learning_rate", 0.0)
        self.__dict__["_slots"] = {}
        self.__dict__["_rate_of_step"] = None
        super().__init__(*args, **kwargs)

    def _build_learning_rate(self, learning_rate: Any) -> Any:
        self.learning_rate = learning_rate
        return self._learning_rate

    @property
    def _index_dict(self) -> Mapping[Any, int]:
        indices: Mapping[Any, int] = self._trainable_variables_indices
        return indices

    def add_variable_from_reference(self, *args: Any, **kwargs: Any) -> Any:
        """Create a variable with the shape and dtype of a model's variable.

        Args:
            *args: The variable of the model, the name, the shape and the initial value.
            **kwargs: `model_variable`, `variable_name`, `shape` and `initial_value`, or the
                arguments of Keras 3.

        Returns:
            The `tf.Variable`, or the Keras variable for a call with the arguments of Keras 3.
        """
        given = kwargs | dict(zip(_ADD_VARIABLE, args, strict=False))
        if "variable_name" not in given:
            return super().add_variable_from_reference(*args, **kwargs)
        reference, name = given["model_variable"], given["variable_name"]
        shape, value = given.get("shape"), given.get("initial_value")
        if value is not None:
            shape = value.shape if shape is None else shape
        initializer: Any = "zeros" if value is None else lambda shape, dtype: tf.cast(value, dtype)
        if shape is None:
            slot = super().add_variable_from_reference(reference, name, initializer)
        else:
            path = f"{keras_variables.path_of(reference).replace('/', '_')}_{name}"
            slot = self.add_variable(shape, initializer, reference.dtype, name=path)
        self._slots[self._get_variable_index(reference), name] = slot
        return keras_variables.raw(slot)

    def update_step(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor | None = None,
    ) -> None:
        """Update a variable, by default with the learning rate of the step that is under way."""
        rate = self._rate_of_step if learning_rate is None else learning_rate
        super().update_step(gradient, variable, rate)


_ADD_VARIABLE = ("model_variable", "variable_name", "shape", "initial_value")


def _replace_update_step(optimizer_cls: Any, update_step: Callable[..., None]) -> None:
    if len(inspect.signature(update_step).parameters) != 3:
        return

    @functools.wraps(update_step)
    def with_rate(
        self: UpdateStep,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor | None = None,
    ) -> None:
        if learning_rate is not None:
            self.__dict__["_rate_of_step"] = learning_rate
        update_step(self, gradient, variable)

    optimizer_cls.update_step = with_rate
