"""Checkpoints and SavedModels for layers and programs written for Keras 2."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite.checkpoint import keras2_converter, model_state
from official_lite.common import keras_variables, nested_dict


def containers_of(layer: keras.Layer) -> dict[str, Any]:
    """Return the containers in a layer's attributes, without those for Keras' own bookkeeping."""
    tracked = {*getattr(layer, "_tracked", ())}
    return {
        name: value
        for name, value in vars(layer).items()
        if isinstance(value, tuple) or (name in tracked and isinstance(value, list | Mapping))
    }


def holds(layer: keras.Layer, part: Any) -> bool:
    """Return whether an attribute of a layer, or a container in one, holds an object."""
    stores = {id(store) for _, store in layer._tracker.config.values()}
    return any(
        part is held
        for name, value in vars(layer).items()
        # Skip attributes with the prefix `_self_`, which TensorFlow and this package use for their
        # bookkeeping.
        if not name.startswith("_self_") and id(value) not in stores
        for held in keras_variables.parts_of(value)
    )


def tracked_containers(layer: keras.Layer) -> dict[str, Any]:
    """Return the containers in a layer's attributes that contain layers or variables.

    `tf.train.Checkpoint` skips such containers of Keras 3 layers. If they are tracked, the names in
    a checkpoint are those of Keras 2, such as `blocks/0/kernel`.
    """
    wrapped = layer.__dict__.setdefault("_self_wrapped_containers", {})
    containers = {}
    for name, container in containers_of(layer).items():
        parts = [*keras_variables.parts_of(container)]
        if not any(isinstance(one, keras.Layer | keras.Variable | tf.Variable) for one in parts):
            continue
        # Reuse the wrapper until its parts change, because restoring relies on its identity.
        if name not in wrapped or wrapped[name][0] != [*map(id, parts)]:
            plain = model_state.plain_containers(container)
            wrapped[name] = [*map(id, parts)], tf.__internal__.tracking.wrap(plain)
        containers[name] = wrapped[name][1]
    return containers


def save_model(model: keras.Model, path: str) -> None:
    """Write a SavedModel with the signature that Keras 2 gives it; see `serving_function`."""
    tf.saved_model.save(model, path, signatures=serving_function(model))


def remember_arguments(
    layer: keras.Layer, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Record the types of the tensors in the first call of a model.

    Args:
        layer: The model, or any other layer, for which nothing is recorded.
        names: The names of the positional parameters of `call`.
        args: The positional arguments of the call.
        kwargs: The keyword arguments of the call.
    """
    if not isinstance(layer, keras.Model) or "_self_arguments" in vars(layer):
        return
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    given.pop("training", None)
    tensors = {name: value for name, value in given.items() if _has_only_tensors(value)}
    if names and names[0] in tensors:
        first = {"inputs": tensors.pop(names[0])}
        vars(layer)["_self_arguments"] = {
            name: _specs_of(layer, name, value) for name, value in (first | tensors).items()
        }


def serving_function(model: keras.Layer) -> Any:
    """Return the function that a SavedModel of a model serves, as with Keras 2.

    Its arguments have the types and the names of the inputs of a functional model, or those of the
    arguments in the first call of any other model. Its results have the keys of the model's
    outputs, or the names of the layers that return them.

    Returns:
        The function; None for a layer, and for a model that has no inputs and was never called.
    """
    inputs = getattr(model, "_inputs_struct", None)
    if inputs is not None:
        arguments = {"inputs": keras.tree.map_structure(_spec_of_input, inputs)}
    else:
        arguments = vars(model).get("_self_arguments", {})
    if not arguments:
        return None
    _, *names = arguments

    def serve(first: Any, *others: Any) -> Any:
        outputs = model(first, **dict(zip(names, others, strict=True)), training=False)
        tensors = keras.tree.flatten(outputs)
        if isinstance(outputs, Mapping):
            paths = [path for path, _ in keras.tree.flatten_with_path(outputs)]
            keys = ["_".join(map(str, path)) for path in paths]
        elif inputs is not None:
            keys = model.output_names
        else:
            return tensors
        return dict(zip(nested_dict.unique_keys(keys), tensors, strict=True))

    specs = [*arguments.values()]
    names_of_specs = nested_dict.unique_keys([spec.name for spec in keras.tree.flatten(specs)])
    named = [
        tf.TensorSpec(spec.shape, spec.dtype, name)
        for spec, name in zip(keras.tree.flatten(specs), names_of_specs, strict=True)
    ]
    return tf.function(serve, input_signature=keras.tree.pack_sequence_as(specs, named))


def _has_only_tensors(value: Any) -> bool:
    leaves = keras.tree.flatten(value)
    return bool(leaves) and all(
        isinstance(leaf, tf.Tensor | np.ndarray | keras.KerasTensor) for leaf in leaves
    )


def _spec_of_input(tensor: keras.KerasTensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name)


def _specs_of(model: keras.Model, argument: str, value: Any) -> Any:
    specs = []
    for path, tensor in keras.tree.flatten_with_path(value):
        has_names = argument == "inputs" and path and isinstance(path[0], str)
        name = "_".join(map(str, path if has_names else (argument, *path)))
        specs.append(_spec_of(model, tensor, name))
    return keras.tree.pack_sequence_as(value, specs)


def _spec_of(model: keras.Model, tensor: Any, name: str) -> tf.TensorSpec:
    shape, dtype = tf.TensorShape(tensor.shape), tf.as_dtype(tensor.dtype)
    if shape.rank:
        shape = tf.TensorShape([None]).concatenate(shape[1:])
    if dtype.is_floating and model.autocast:
        # Under mixed precision, the model itself casts its inputs to the compute dtype, so callers
        # pass the dtype of the variables.
        dtype = tf.as_dtype(model.variable_dtype)
    return tf.TensorSpec(shape, dtype, name)


class Checkpoint(tf.train.Checkpoint):
    """A `tf.train.Checkpoint` that also restores checkpoints that Keras 2 wrote."""

    def read(self, save_path: str, options: Any = None) -> Any:
        """Restore the variables; see `tf.train.Checkpoint.read`."""
        converted = self._converted(save_path, with_save_counter=False)
        return converted or super().read(save_path, options)

    def restore(self, save_path: str | None, options: Any = None) -> Any:
        """Restore the variables; see `tf.train.Checkpoint.restore`."""
        return self._converted(save_path) or super().restore(save_path, options)

    def _converted(self, save_path: Any, *, with_save_counter: bool = True) -> "_Status | None":
        if save_path is None or not keras2_converter.is_keras2(path := os.fspath(save_path)):
            return None
        keras2_converter.restore_run(self, path, with_save_counter=with_save_counter)
        return _Status()


class _Status:
    """The load status of a converted checkpoint: the conversion has already set all variables."""

    def assert_consumed(self) -> "_Status":
        return self

    assert_existing_objects_matched = assert_nontrivial_match = expect_partial = assert_consumed

    def initialize_or_restore(self, session: Any = None) -> None:
        """Do nothing, because the variables already have their values."""

    run_restore_ops = initialize_or_restore
