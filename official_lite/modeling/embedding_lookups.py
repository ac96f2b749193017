"""Looking up rows of a Keras embedding without reading the table.

TensorFlow updates rows of a variable in place only while nobody holds the variable's value. A
variable whose rows were updated once is therefore copied whenever it is read, and
`keras.layers.Embedding` reads its table twice in each step: for its shape, and to gather from it.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import stateless_scope

__all__ = ["is_large", "read_rows_only", "size", "tables"]

# To pass over so many numbers takes longer than to update those that a batch looks up.
_LARGE = 2**22


def read_rows_only(model: Any) -> None:
    """Has the embedding layers of a built model read rows; they compute what they did before."""
    for layer in _plain_embeddings(model):
        if "call" not in layer.__dict__:
            # Past Keras' `__setattr__`, which would look for things to track.
            layer.__dict__["call"] = functools.partial(_look_up, layer, layer.embeddings.value)


def tables(model: Any) -> list[keras.Variable]:
    """What the embedding layers of a built model look up in, of which a step changes some rows."""
    found = {id(layer.embeddings): layer.embeddings for layer in _plain_embeddings(model)}
    return [table for table in found.values() if table.trainable]


def is_large(variable: Any) -> bool:
    """Whether it costs a step more to pass over all of a table than to update some rows."""
    return size(variable) >= _LARGE


def size(variable: Any) -> int:
    """How many numbers there are in a variable."""
    return math.prod(variable.shape)


def _plain_embeddings(model: Any) -> Iterator[Any]:
    if not isinstance(model, keras.Model):
        return
    for layer in model._flatten_layers():
        is_embedding = type(layer).call is keras.layers.Embedding.call and layer.built
        # With LoRA it looks up in a sum.
        if is_embedding and isinstance(layer.embeddings, keras.Variable):
            yield layer


def _look_up(layer: Any, table: tf.Variable, inputs: Any) -> Any:
    # In a stateless scope, something else takes the place of the variable.
    is_plain = not (layer.lora_enabled or stateless_scope.in_stateless_scope())
    if not is_plain or not isinstance(inputs, tf.Tensor):
        return type(layer).call(layer, inputs)
    ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
    # As in Keras, negative ones count from the end.
    ids = tf.where(ids < 0, ids + tf.cast(table.shape[0], ids.dtype), ids)
    return tf.cast(_on_replica(table).sparse_read(ids), layer.compute_dtype)


def _on_replica(variable: Any) -> tf.Variable:
    """The variable that stands for it on the replica that asks."""
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    return variable._get() if is_distributed else variable
