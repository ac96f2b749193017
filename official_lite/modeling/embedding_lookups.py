"""Look-ups in Keras embeddings that do not read the whole table.

TensorFlow can update rows of a variable in place only while no other reference to its value exists.
Once its rows have been updated, a variable is therefore copied whenever it is read.
`keras.layers.Embedding` reads its table twice per step: for its shape and to gather from it.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import stateless_scope

__all__ = ["is_large", "read_rows_only", "size", "tables"]

# The minimum number of elements of a large table. Traversing a large table takes longer than
# updating the rows that a batch looks up.
_LARGE = 2**22


def read_rows_only(model: keras.Model | tf.Module) -> None:
    """Make a built model's embedding layers read individual rows; results do not change."""
    for layer in _plain_embeddings(model):
        if "call" not in layer.__dict__:
            # Bypass Keras' `__setattr__`, which would look for objects to track.
            layer.__dict__["call"] = functools.partial(_look_up, layer, layer.embeddings.value)


def tables(model: keras.Model | tf.Module) -> list[keras.Variable]:
    """Return the trainable tables of a built model's embedding layers, without duplicates."""
    found = {id(layer.embeddings): layer.embeddings for layer in _plain_embeddings(model)}
    return [table for table in found.values() if table.trainable]


def is_large(variable: keras.Variable) -> bool:
    """Return whether traversing the whole table costs more than updating the rows of a step."""
    return size(variable) >= _LARGE


def size(variable: keras.Variable) -> int:
    """Return the number of elements of a variable."""
    return math.prod(variable.shape)


def _plain_embeddings(model: keras.Model | tf.Module) -> Iterator[Any]:
    if not isinstance(model, keras.Model):
        return
    for layer in model._flatten_layers():
        is_embedding = type(layer).call is keras.layers.Embedding.call and layer.built
        # With LoRA, `embeddings` is a computed sum instead of a variable.
        if is_embedding and isinstance(layer.embeddings, keras.Variable):
            yield layer


def _look_up(layer: keras.layers.Embedding, table: tf.Variable, inputs: tf.Tensor) -> tf.Tensor:
    # Use Keras' own method with LoRA, which adds a term to the rows, and in a stateless scope,
    # which may substitute another value for the variable.
    is_plain = not (layer.lora_enabled or stateless_scope.in_stateless_scope())
    if not is_plain or not isinstance(inputs, tf.Tensor):
        return type(layer).call(layer, inputs)
    ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
    # As in Keras, negative ids count from the end.
    ids = tf.where(ids < 0, ids + tf.cast(table.shape[0], ids.dtype), ids)
    return tf.cast(_on_replica(table).sparse_read(ids), layer.compute_dtype)


def _on_replica(variable: tf.Variable) -> tf.Variable:
    """Return the current replica's component of a variable."""
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    return variable._get() if is_distributed else variable
