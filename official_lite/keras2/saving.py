"""Checkpoints and SavedModels of layers that are written for Keras 2."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

__all__ = ["containers_of", "save_model", "tracked_containers"]


def containers_of(layer: keras.Layer) -> Iterator[tuple[str, dict[Any, Any] | list[Any]]]:
    """Yield the names of the attributes that hold a container, with plain copies of these."""
    for name in list(getattr(layer, "_tracked", ())):
        value = getattr(layer, name, None)
        yield name, dict(value) if isinstance(value, Mapping) else list(value or ())


def tracked_containers(layer: keras.Layer) -> dict[str, Any]:
    """Return the lists and dictionaries of a layer's attributes that hold layers or variables.

    `tf.train.Checkpoint` leaves out what Keras 3 keeps in such attributes. The names in a
    checkpoint become those of Keras 2, such as `blocks/0/kernel`.
    """
    wrapped = layer.__dict__.setdefault("_wrapped_containers", {})
    containers = {}
    for name, plain in containers_of(layer):
        leaves = keras.tree.flatten(plain)
        if not any(isinstance(one, keras.Layer | keras.Variable | tf.Variable) for one in leaves):
            continue
        # A container keeps its identity, on which a restore relies, as long as it is the same.
        if name not in wrapped or wrapped[name][0] != [*map(id, leaves)]:
            wrapped[name] = [*map(id, leaves)], tf.__internal__.tracking.wrap(plain)
        containers[name] = wrapped[name][1]
    return containers


def save_model(model: keras.Model, path: str) -> None:
    """Write a SavedModel with the signature that Keras 2 gives it.

    The arguments of the signature have the names of the model's inputs. Its results have the keys
    of the model's outputs, or the names of the layers that return them.
    """

    def serve(inputs: Any) -> dict[str, tf.Tensor]:
        outputs = model(inputs, training=False)
        if isinstance(outputs, Mapping):
            paths = keras.tree.flatten_with_path(outputs)
            return {"_".join(map(str, path)): tensor for path, tensor in paths}
        return dict(zip(model.output_names, keras.tree.flatten(outputs), strict=True))

    signatures = None
    if (inputs := getattr(model, "_inputs_struct", None)) is not None:
        specs = keras.tree.map_structure(
            lambda one: tf.TensorSpec(one.shape, one.dtype, one.name), inputs
        )
        signatures = tf.function(serve, input_signature=[specs])
    tf.saved_model.save(model, path, signatures=signatures)
