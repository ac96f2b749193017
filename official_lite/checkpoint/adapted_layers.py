"""What preprocessing layers have learnt from data by `adapt`, as a part of a checkpoint.

Keras computes with copies of it, constants and tables, which `tf.train.Checkpoint` does not know:
a restored `Normalization` would have the right variables and leave its inputs as they are.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from official_lite.common import errors

__all__ = ["AdaptedLayers", "find_adaptable_layers", "follow_statistics"]


class AdaptedLayers(tf.train.experimental.PythonState):
    """The state of such layers, to be put into a checkpoint.

    Args:
        layers: Those of `find_adaptable_layers`. What they know is read when it is saved.
    """

    def __init__(self, layers: Sequence[keras.layers.Layer]) -> None:
        self._layers = list(layers)

    def serialize(self) -> str:
        return json.dumps([(_name(layer), _kind_of(layer).read(layer)) for layer in self._layers])

    def deserialize(self, string_value: str) -> None:
        """Gives each layer what it knew.

        Raises:
            errors.CheckpointError: It was of a model with others of them, or this one is not built.
        """
        states = json.loads(string_value)
        saved, wanted = [name for name, _ in states], [_name(layer) for layer in self._layers]
        if saved != wanted:
            raise errors.CheckpointError(
                f"The layers that `adapt` is for are {', '.join(saved)} in the checkpoint; in "
                f"the model, {', '.join(wanted)}."
            )
        for layer, (_, state) in zip(self._layers, states, strict=True):
            if state is not None:
                _kind_of(layer).write(layer, state)


def find_adaptable_layers(model: keras.Layer) -> list[keras.layers.Layer]:
    """Layers of a model that learn by `adapt`, not from their constructor's arguments."""
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, tuple(_KINDS)) and _kind_of(layer).learns(layer)
    ]


def follow_statistics(model: Any) -> None:
    """Has each `Normalization` of a Keras model compute with its variables as they are now."""
    for layer in model._flatten_layers() if isinstance(model, keras.Model) else ():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


class _Kind(NamedTuple):
    learns: Callable[[Any], bool]
    # None while there is nothing to save.
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]


def _read_statistics(layer: Any) -> list[Any] | None:
    if not layer.built:
        return None
    weights = (layer.adapt_mean, layer.adapt_variance)
    return [tf.convert_to_tensor(weight.value).numpy().tolist() for weight in weights]


def _write_statistics(layer: Any, state: list[Any]) -> None:
    if not layer.built:
        raise errors.CheckpointError(
            f"The layer {layer.name!r} is not built yet. Call the model once before it is restored."
        )
    for weight, value in zip((layer.adapt_mean, layer.adapt_variance), state, strict=True):
        weight.assign(np.asarray(value, weight.dtype))
    layer.finalize_state()


def _read_boundaries(layer: Any) -> list[float] | None:
    return None if layer.bin_boundaries is None else [float(b) for b in layer.bin_boundaries]


def _write_boundaries(layer: Any, state: list[float]) -> None:
    layer.bin_boundaries = state


def _read_vocabulary(layer: Any) -> dict[str, Any] | None:
    if not layer.get_vocabulary(include_special_tokens=False):
        return None
    words = [getattr(word, "item", lambda word=word: word)() for word in layer.get_vocabulary()]
    return {"words": words, "idf_weights": _read_idf_weights(layer)}


def _read_idf_weights(layer: Any) -> list[float] | None:
    weights = getattr(layer, "idf_weights", None)
    return None if weights is None else weights.numpy().tolist()


def _write_vocabulary(layer: Any, state: dict[str, Any]) -> None:
    if _read_vocabulary(layer) != state:
        layer.set_vocabulary(state["words"], state["idf_weights"])


_VOCABULARY = _Kind(
    # Of a vocabulary in a file the public config says as little as of none.
    learns=lambda layer: not layer._has_input_vocabulary,
    read=_read_vocabulary,
    write=_write_vocabulary,
)

# A `TextVectorization` has a `StringLookup` inside.
_KINDS: dict[type[keras.layers.Layer], _Kind] = {
    keras.layers.Normalization: _Kind(
        learns=lambda layer: layer.input_mean is None,
        read=_read_statistics,
        write=_write_statistics,
    ),
    keras.layers.Discretization: _Kind(
        learns=lambda layer: layer.num_bins is not None,
        read=_read_boundaries,
        write=_write_boundaries,
    ),
    keras.layers.StringLookup: _VOCABULARY,
    keras.layers.IntegerLookup: _VOCABULARY,
}


def _name(layer: keras.layers.Layer) -> str:
    # Not its own: that of a layer may have another number in another process.
    return type(layer).__name__


def _kind_of(layer: keras.layers.Layer) -> _Kind:
    return next(kind for cls, kind in _KINDS.items() if isinstance(layer, cls))
