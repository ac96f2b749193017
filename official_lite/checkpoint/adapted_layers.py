"""Checkpointing of the state that preprocessing layers learn by `adapt`.

Keras computes with copies of this state, in constants and tables that `tf.train.Checkpoint` does
not track. Without this module, a restored `Normalization` would have the right variables but would
not normalize its inputs.
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
    """The checkpointed state of preprocessing layers.

    Args:
        layers: The layers that `find_adaptable_layers` returns. Their state is read when the
            checkpoint is saved.
    """

    def __init__(self, layers: Sequence[keras.layers.Layer]) -> None:
        self._layers = list(layers)

    def serialize(self) -> str:
        return json.dumps([(_name(layer), _kind_of(layer).read(layer)) for layer in self._layers])

    def deserialize(self, string_value: str) -> None:
        """Restore the state of each layer.

        Raises:
            errors.CheckpointError: The checkpoint was saved with other layers, or a layer is not
                built.
        """
        states = json.loads(string_value)
        saved, wanted = [name for name, _ in states], [_name(layer) for layer in self._layers]
        if saved != wanted:
            raise errors.CheckpointError(
                f"The adapted layers of the checkpoint are {', '.join(saved)}, but those of the "
                f"model are {', '.join(wanted)}."
            )
        for layer, (_, state) in zip(self._layers, states, strict=True):
            if state is not None:
                _kind_of(layer).write(layer, state)


def find_adaptable_layers(model: keras.Layer) -> list[keras.layers.Layer]:
    """Return the layers of a model that learn their state by `adapt`, not from arguments."""
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, tuple(_KINDS)) and _kind_of(layer).learns(layer)
    ]


def follow_statistics(model: keras.Model | tf.Module) -> None:
    """Make each `Normalization` layer of a Keras model use the current values of its variables."""
    for layer in model._flatten_layers() if isinstance(model, keras.Model) else ():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


class _Kind(NamedTuple):
    learns: Callable[[Any], bool]
    # Returns None while there is nothing to save.
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]


def _read_statistics(layer: keras.layers.Normalization) -> list[Any] | None:
    if not layer.built:
        return None
    weights = (layer.adapt_mean, layer.adapt_variance)
    return [tf.convert_to_tensor(weight.value).numpy().tolist() for weight in weights]


def _write_statistics(layer: keras.layers.Normalization, state: list[Any]) -> None:
    if not layer.built:
        raise errors.CheckpointError(
            f"The layer {layer.name!r} is not built yet. Call the model once before restoring it."
        )
    for weight, value in zip((layer.adapt_mean, layer.adapt_variance), state, strict=True):
        weight.assign(np.asarray(value, weight.dtype))
    layer.finalize_state()


def _read_boundaries(layer: keras.layers.Discretization) -> list[float] | None:
    return None if layer.bin_boundaries is None else [float(b) for b in layer.bin_boundaries]


def _write_boundaries(layer: keras.layers.Discretization, state: list[float]) -> None:
    layer.bin_boundaries = state


def _read_vocabulary(
    layer: keras.layers.StringLookup | keras.layers.IntegerLookup | keras.layers.TextVectorization,
) -> dict[str, Any] | None:
    if not layer.get_vocabulary(include_special_tokens=False):
        return None
    words = [getattr(word, "item", lambda word=word: word)() for word in layer.get_vocabulary()]
    return {"words": words, "idf_weights": _read_idf_weights(layer)}


def _read_idf_weights(
    layer: keras.layers.StringLookup | keras.layers.IntegerLookup | keras.layers.TextVectorization,
) -> list[float] | None:
    weights = getattr(layer, "idf_weights", None)
    return None if weights is None else weights.numpy().tolist()


def _write_vocabulary(
    layer: keras.layers.StringLookup | keras.layers.IntegerLookup | keras.layers.TextVectorization,
    state: dict[str, Any],
) -> None:
    if _read_vocabulary(layer) != state:
        layer.set_vocabulary(state["words"], state["idf_weights"])


_VOCABULARY = _Kind(
    # The public config does not show whether the vocabulary comes from a file or is not set at all.
    learns=lambda layer: not layer._has_input_vocabulary,
    read=_read_vocabulary,
    write=_write_vocabulary,
)

# `TextVectorization` needs no entry because it contains a `StringLookup`.
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
    # Use the class because the number in a layer's own name may differ between processes.
    return type(layer).__name__


def _kind_of(layer: keras.layers.Layer) -> _Kind:
    return next(kind for cls, kind in _KINDS.items() if isinstance(layer, cls))
