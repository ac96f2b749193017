"""Augmentation of training data by Keras layers, with the same random numbers after a resume."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import errors, suggestions
from official_lite.data import position
from official_lite.modeling import replica_state
from official_lite.modeling.hyperparams import base_config

__all__ = ["augment"]


def augment(
    dataset: tf.data.Dataset,
    layers: Sequence[keras.layers.Layer | Mapping[str, Any] | base_config.Config],
    input_context: tf.distribute.InputContext | None = None,
    *,
    num_parallel_calls: int | None = tf.data.AUTOTUNE,
) -> tf.data.Dataset:
    """Apply layers such as `keras.layers.RandAugment` to batches of training data.

    A Keras layer counts its calls to draw random numbers, and that count is lost when a run
    resumes. Here the random numbers of a batch depend only on the run's seed, the position of the
    batch and the input pipeline. An interrupted run therefore sees the same images as an
    uninterrupted one, and batches can be augmented in parallel.

    ::

        dataset = arrays.from_arrays((images, labels), batch_size, ...)
        if params.is_training:
            layers = [keras.layers.RandomFlip("horizontal"), keras.layers.MixUp(alpha=0.2)]
            dataset = augmentation.augment(dataset, layers, input_context)

    Args:
        dataset: The batches, as images, as `(images, labels)`, or as dictionaries in the format
            that the layers expect. The labels of pairs are given to the layers `MixUp` and
            `CutMix`, which require one-hot labels.
        layers: The layers, applied in order, in float32, also if the model is trained in mixed
            precision. In a config file, write a mapping with the `class_name` of a layer in
            `keras.layers` and its arguments as `config`.
        input_context: The argument of `Task.build_inputs`.
        num_parallel_calls: The number of batches to augment in parallel.

    Raises:
        errors.UnknownNameError: If `keras.layers` has no layer with a given name.
        errors.ConfigValueError: If a layer can't be created, or if labels that are to be mixed are
            not one-hot.
    """
    built = [layer if isinstance(layer, keras.layers.Layer) else _create(layer) for layer in layers]
    if not built:
        return dataset
    for layer in built:
        _compute_in_float32(layer)
    states = [v for layer in built for v in layer.variables if replica_state.is_seed(v)]
    begin = position.current()
    seed = begin.seed if begin is not None else 0
    pipeline = input_context.input_pipeline_id if input_context is not None else 0

    def apply(number: tf.Tensor, batch: Any) -> Any:
        seeds = replica_state.numbers_for(len(states), seed, number, pipeline)
        fixed = [(state, tf.cast(s, state.dtype)) for state, s in zip(states, seeds, strict=True)]
        with keras.StatelessScope(fixed):
            for layer in built:
                batch = _apply(layer, batch)
        return batch

    numbered = position.enumerate_batches(dataset, input_context)
    return numbered.map(apply, num_parallel_calls=num_parallel_calls, deterministic=True)


def _create(config: Mapping[str, Any] | base_config.Config) -> keras.layers.Layer:
    # A `Config` turns the mappings in its lists into `Config` objects, so convert them back.
    config = config.as_dict() if isinstance(config, base_config.Config) else config
    if unknown := [key for key in config if key not in ("class_name", "config")]:
        raise errors.ConfigValueError(
            f"Unknown key {unknown[0]!r} in an augmentation. Expected `class_name` and `config`, "
            "as in {'class_name': 'RandomFlip', 'config': {'mode': 'horizontal'}}."
        )
    name = config.get("class_name", "")
    cls = getattr(keras.layers, name, None)
    if not isinstance(cls, type):
        raise errors.UnknownNameError(
            f"`keras.layers` has no layer {name!r}. "
            f"{suggestions.did_you_mean(name, dir(keras.layers))}"
        )
    arguments = config.get("config") or {}
    try:
        layer: keras.layers.Layer = cls(**arguments)
    except (TypeError, ValueError) as error:
        raise errors.ConfigValueError(
            f"The augmentation {name!r} can't be created with {dict(arguments)}: {error}"
        ) from error
    return layer


def _compute_in_float32(layer: keras.layers.Layer) -> None:
    # A layer that was created under the policy of mixed precision casts images and labels to half
    # precision, in which MixUp raises an error and CutMix overflows. Nested layers, such as those
    # in `RandAugment`, need the same change.
    for each in layer._flatten_layers():
        if each.compute_dtype in ("float16", "bfloat16"):
            each.dtype_policy = "float32"


def _apply(layer: keras.layers.Layer, batch: Any) -> Any:
    if not isinstance(batch, tuple):
        return layer(batch, training=True)
    images, labels, *rest = batch
    if not isinstance(layer, keras.layers.MixUp | keras.layers.CutMix):
        return (layer(images, training=True), labels, *rest)
    if labels.shape.rank != 2:
        raise errors.ConfigValueError(
            f"{type(layer).__name__} mixes labels, so they must be one-hot, with the shape (batch, "
            f"classes); got {labels.shape}. Convert them with `keras.ops.one_hot`, and use a "
            "categorical loss."
        )
    mixed = layer({"images": images, "labels": labels}, training=True)
    return (mixed["images"], mixed["labels"], *rest)
