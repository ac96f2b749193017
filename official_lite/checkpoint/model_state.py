"""Tracking of the state of a Keras 3 model that `tf.train.Checkpoint(model=model)` omits.

TensorFlow finds variables through attributes. It does not find the layers that Keras 3 keeps in
lists and dicts (`self.blocks = [...]`), the seed generators of dropout, or the state that a layer
learned by `adapt`. `assert_existing_objects_matched` does not report them either. Save a model as::

    tf.train.Checkpoint(model=model, **model_state.hidden_items(model))
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.checkpoint import adapted_layers
from official_lite.modeling import replica_state

__all__ = ["checkpoint_items", "hidden_items", "plain_containers", "weight_items"]


class _Names(tf.train.experimental.PythonState):
    """The names of the weights in a list, because their order is ambiguous once layers change."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def serialize(self) -> str:
        return json.dumps(self._names)

    def deserialize(self, string_value: str) -> None:
        """Ignore the saved names and keep the names of this model."""


def checkpoint_items(model: keras.Model | tf.Module) -> dict[str, Any]:
    """Return the model's own `checkpoint_items`, in which containers are plain containers."""
    items = getattr(model, "checkpoint_items", None) or {}
    return {name: plain_containers(item) for name, item in items.items()}


def plain_containers(value: Any) -> Any:
    """Return a value with plain lists, tuples and dictionaries in it, at any depth.

    TensorFlow tracks these, but not the containers that Keras 3 makes of a model's attributes.
    """
    if isinstance(value, Mapping):
        return {key: plain_containers(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [plain_containers(part) for part in value]
        if hasattr(value, "_fields"):
            # TensorFlow wraps named tuples in an object that has their class.
            return value.__class__(*parts)
        return parts if isinstance(value, list) else tuple(parts)
    return value


def hidden_items(model: keras.Model | tf.Module) -> dict[str, Any]:
    """Return the items to save in addition to the model.

    `hidden_weights` and `random_state` are lists of variables in the order of `model.weights` and
    `model.variables`. `hidden_names` holds the paths of `hidden_weights`, and `adapted_layers` the
    state that layers learned by `adapt`. Empty items are left out.
    """
    if not isinstance(model, keras.Layer):
        return {}
    weights = {id(v) for v in model.weights}
    random_state = [v for v in model.variables if id(v) not in weights and replica_state.is_seed(v)]
    hidden = _hidden_weights(model)
    names = _Names([v.path for v in hidden]) if hidden else None
    items = {"hidden_weights": hidden, "hidden_names": names, "random_state": random_state}
    return {name: item for name, item in items.items() if item} | _adapted_items(model)


def weight_items(model: keras.Model | tf.Module) -> dict[str, Any]:
    """Return the items to load into a model for its weights without its random state."""
    if not isinstance(model, keras.Model):
        return {"model": model}
    hidden = _hidden_weights(model)
    own = {"model": model} | ({"hidden_weights": hidden} if hidden else {})
    return own | _adapted_items(model)


def _adapted_items(model: keras.Layer) -> dict[str, Any]:
    layers = adapted_layers.find_adaptable_layers(model)
    return {"adapted_layers": adapted_layers.AdaptedLayers(layers)} if layers else {}


def _hidden_weights(model: keras.Layer) -> list[Any]:
    found = {id(node) for node in tf.train.TrackableView(model).descendants()}
    return [v for v in model.weights if id(v) not in found]
