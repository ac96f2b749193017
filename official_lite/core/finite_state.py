"""Whether all weights and all state of the optimizer are finite."""

from typing import Any

import keras
import tensorflow as tf

from official_lite.orbit.hooks import batch_norm_statistics

__all__ = ["FiniteState"]


class FiniteState:
    """Looks through the variables of a trainer, in one compiled pass over them.

    The loss of a step says nothing of the update that follows it: a gradient may be bad though the
    loss was not.

    Args:
        trainer: Its `model` and `optimizer` are looked at.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._names: list[str] = []
        self._are_finite: Any = None

    def bad_variables(self) -> list[str]:
        """The paths of variables that hold infinities or NaN."""
        if self._are_finite is None:
            self._are_finite = self._compile()
        flags = self._are_finite().numpy()
        if flags.all():
            return []
        return [name for name, flag in zip(self._names, flags, strict=True) if not flag]

    def _compile(self) -> Any:
        found = [*self._trainer.model.variables, *getattr(self._trainer.optimizer, "variables", ())]
        values = []
        for variable in found:
            if not keras.backend.is_float_dtype(variable.dtype):
                continue
            for value in batch_norm_statistics.local_values(variable):
                self._names.append(str(getattr(variable, "path", variable.name)))
                values.append(value)

        @tf.function
        def are_finite() -> tf.Tensor:
            flags = [tf.reduce_all(tf.math.is_finite(value)) for value in values]
            return tf.stack(flags) if flags else tf.constant([True])

        return are_finite.get_concrete_function()
