"""Protection of the weights of candidates that a step does not use.

The gradient of these weights is zero, so plain SGD does not change them. Momentum, Adam and weight
decay, however, change weights even if their gradient is zero, and a moving average follows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import keras_variables
from official_lite.modeling import distributed_gradients
from official_lite.modeling.optimization import ema_optimizer
from official_lite.nas import choices

__all__ = ["IdlePaths"]

# A place in the model is used if, for each label here, the step uses one of these options.
_Place = tuple[tuple[str, frozenset[int]], ...]


class IdlePaths:
    """The weights inside candidates, together with their optimizer slots and moving averages.

    Weights that are also used outside of all choices are not part of it. This includes the weights
    of a layer that is both a candidate and an attribute of a model or layer.

    Call both methods in the cross-replica context.

    Args:
        model: A built model with choices.
        optimizer: A built Keras optimizer.
    """

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        places = _places_of_weights(model)
        # Group variables by their places, so a step evaluates each condition only once.
        self._variables: dict[tuple[_Place, ...], list[Any]] = {}
        outside: list[str] = []
        for weight in model.trainable_variables:
            found = tuple(places.get(id(weight), ()))
            if found and all(found):
                own = [weight, *_slots_of(weight, optimizer)]
                self._variables.setdefault(found, []).extend(own)
            elif any(found):
                outside.append(keras_variables.path_of(weight))
        if outside:
            logging.warning(
                "`idle_paths: freeze` does not apply to %s, because their layers are both "
                "candidates and parts of the model outside of choices. If only a choice uses a "
                "layer, create it in a function that you pass as the candidate.",
                ", ".join(f"`{path}`" for path in outside),
            )

    def keep(self) -> list[list[tf.Tensor]]:
        """Return copies of the current values, for `put_back`."""
        return [
            [tf.identity(variable.value) for variable in variables]
            for variables in self._variables.values()
        ]

    def put_back(self, kept: Sequence[Sequence[tf.Tensor]], paths: Mapping[str, tf.Tensor]) -> None:
        """Restore the values of the variables that a step with these paths did not use."""
        for (places, variables), values in zip(self._variables.items(), kept, strict=True):
            is_used = tf.reduce_any([_is_used(place, paths) for place in places])
            for variable, value in zip(variables, values, strict=True):
                variable.assign(tf.where(is_used, tf.convert_to_tensor(variable.value), value))


def _is_used(place: _Place, paths: Mapping[str, tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all(
        [tf.reduce_any(tf.equal(paths[label], sorted(indices))) for label, indices in place]
    )


def _places_of_weights(model: keras.Model) -> dict[int, list[_Place]]:
    """Return the places where each weight is used, by the weight's id.

    A layer has several places if choices share it. The place outside of all choices is empty.
    """
    found: dict[int, list[_Place]] = {}
    seen: set[tuple[int, _Place]] = set()

    def visit(layer: keras.layers.Layer, place: _Place) -> None:
        if (id(layer), place) in seen:
            return
        seen.add((id(layer), place))
        if not isinstance(layer, choices.Choice):
            for weight in layer._trainable_variables:
                found.setdefault(id(weight), []).append(place)
            for inner in layer._layers:
                visit(inner, place)
            return
        users: dict[int, tuple[keras.layers.Layer, set[int]]] = {}
        for index in range(len(layer.options)):
            for inner in layer.layers_of(index):
                users.setdefault(id(inner), (inner, set()))[1].add(index)
        for inner, indices in users.values():
            visit(inner, (*place, (layer.label, frozenset(indices))))

    visit(model, ())
    return found


def _slots_of(weight: keras.Variable, optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Return the optimizer's variables of a weight, such as its momentum and its average."""
    averages = ema_optimizer.weights_and_averages(optimizer)
    slots = [average for one, average in averages if one is weight]
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
    return list({id(slot): slot for slot in slots}.values())
