"""The part of a Keras 3 model that `tf.train.Checkpoint(model=model)` leaves out in silence.

TensorFlow finds variables by walking attributes. It does not look into the lists and dicts in which
Keras 3 keeps layers (`self.blocks = [...]`), nor at the seed generators of dropout, nor at what a
layer has learnt by `adapt`, and `assert_existing_objects_matched` does not miss them either. A
checkpoint of a model should be::

    tf.train.Checkpoint(model=model, **model_state.hidden_items(model))
"""

import json
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.checkpoint import adapted_layers
from official_lite.modeling import step_seeds

__all__ = ["hidden_items", "weight_items"]


class _Names(tf.train.experimental.PythonState):
    """Says whose weights a list has; its order alone can't, once a layer comes or goes."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def serialize(self) -> str:
        return json.dumps(self._names)

    def deserialize(self, string_value: str) -> None:
        """Keeps the names of this model, whatever they were in another process."""


def hidden_items(model: Any) -> dict[str, Any]:
    """What to save beside the model: `hidden_weights` and `random_state`, where there are any.

    Both are lists, in the order of `model.weights` and `model.variables`. `hidden_names` are the
    paths of the former. `adapted_layers` is what layers know by `adapt`.
    """
    if not isinstance(model, keras.Layer):
        return {}
    weights = {id(v) for v in model.weights}
    random_state = [v for v in model.variables if id(v) not in weights and step_seeds.is_seed(v)]
    hidden = _hidden_weights(model)
    names = _Names([v.path for v in hidden]) if hidden else None
    items = {"hidden_weights": hidden, "hidden_names": names, "random_state": random_state}
    return {name: item for name, item in items.items() if item} | _adapted_items(model)


def weight_items(model: Any) -> dict[str, Any]:
    """What to load into a model whose weights are wanted, but not its random state."""
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
