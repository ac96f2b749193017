"""Protection of the weights of candidates that a step does not use.

The gradient of these weights is zero, so plain SGD does not change them. Momentum, Adam and weight
decay, however, change weights even if their gradient is zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.modeling import distributed_gradients
from official_lite.nas import resolution

__all__ = ["IdlePaths"]

# A weight is used if, for each label here, the step uses one of these options.
_Conditions = tuple[tuple[str, frozenset[int]], ...]


class IdlePaths:
    """The weights inside candidates, together with their optimizer slots.

    Call both methods in the cross-replica context.

    Args:
        model: A built model with choices.
        optimizer: A built Keras optimizer.
    """

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        conditions = _conditions(model)
        # Group variables by their conditions, so a step evaluates each condition only once.
        self._variables: dict[_Conditions, list[Any]] = {}
        for weight in model.trainable_variables:
            if id(weight) in conditions:
                found = [weight, *_slots_of(weight, optimizer)]
                self._variables.setdefault(conditions[id(weight)], []).extend(found)

    def keep(self) -> list[list[tf.Tensor]]:
        """Return copies of the current values, for `put_back`."""
        return [
            [tf.identity(variable.value) for variable in variables]
            for variables in self._variables.values()
        ]

    def put_back(self, kept: Sequence[Sequence[tf.Tensor]], paths: Mapping[str, tf.Tensor]) -> None:
        """Restore the values of the variables that a step with these paths did not use."""
        for (conditions, variables), values in zip(self._variables.items(), kept, strict=True):
            is_used = tf.reduce_all(
                [
                    tf.reduce_any(tf.equal(paths[label], sorted(indices)))
                    for label, indices in conditions
                ]
            )
            for variable, value in zip(variables, values, strict=True):
                variable.assign(tf.where(is_used, tf.convert_to_tensor(variable.value), value))


def _conditions(model: keras.Model) -> dict[int, _Conditions]:
    """Return the conditions under which each weight inside choices is used, by the weight's id."""
    found: dict[int, list[tuple[str, frozenset[int]]]] = {}
    for choice in resolution.find_choices(model):
        used: dict[int, set[int]] = {}
        for index in range(len(choice.options)):
            for layer in choice.layers_of(index):
                for weight in layer.weights:
                    used.setdefault(id(weight), set()).add(index)
        for key, indices in used.items():
            found.setdefault(key, []).append((choice.label, frozenset(indices)))
    return {key: tuple(conditions) for key, conditions in found.items()}


def _slots_of(weight: keras.Variable, optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Return the optimizer's slot variables of a weight, such as its momentum."""
    slots = []
    for one in distributed_gradients.wrapped_optimizers(optimizer):
        weights = list(getattr(one, "_trainable_variables", ()))
        index = next((i for i, w in enumerate(weights) if w is weight), None)
        if index is None:
            continue
        others = [v for v in vars(one).values() if isinstance(v, list) and len(v) == len(weights)]
        for other in others:
            slot = other[index]
            if slot is not weight and getattr(slot, "shape", None) == weight.shape:
                slots.append(slot)
    return slots
