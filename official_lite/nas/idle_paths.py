"""Keeps a step from changing the weights of candidates that it did not use.

Their gradient is zero, which plain SGD takes for what it is; but momentum, Adam and weight decay go
on moving them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_lite.modeling import distributed_gradients
from official_lite.nas import resolution

__all__ = ["IdlePaths"]

# For each label, the options with which a weight is used.
_Conditions = tuple[tuple[str, frozenset[int]], ...]


class IdlePaths:
    """The weights within candidates, and what an optimizer remembers of them.

    Both methods are for the cross-replica context.

    Args:
        model: A built model with choices.
        optimizer: A built optimizer of Keras.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        conditions = _conditions(model)
        # By their conditions, so that a step asks once for all of a layer.
        self._variables: dict[_Conditions, list[Any]] = {}
        for weight in model.trainable_variables:
            if id(weight) in conditions:
                found = [weight, *_slots_of(weight, optimizer)]
                self._variables.setdefault(conditions[id(weight)], []).extend(found)

    def keep(self) -> list[list[tf.Tensor]]:
        """What they are now."""
        return [
            [tf.identity(variable.value) for variable in variables]
            for variables in self._variables.values()
        ]

    def put_back(self, kept: Sequence[Sequence[tf.Tensor]], paths: Mapping[str, tf.Tensor]) -> None:
        """Puts those back that a step with these paths did not use."""
        for (conditions, variables), values in zip(self._variables.items(), kept, strict=True):
            is_used = tf.reduce_all(
                [
                    tf.reduce_any(tf.equal(paths[label], sorted(indices)))
                    for label, indices in conditions
                ]
            )
            for variable, value in zip(variables, values, strict=True):
                variable.assign(tf.where(is_used, tf.convert_to_tensor(variable.value), value))


def _conditions(model: Any) -> dict[int, _Conditions]:
    """By the identity of each weight within choices."""
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


def _slots_of(weight: Any, optimizer: Any) -> list[Any]:
    """What an optimizer has beside a weight, such as its momentum."""
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
