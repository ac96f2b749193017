"""Looking up rows of a Keras embedding without reading the table.

TensorFlow updates rows of a variable in place only while nobody holds the variable's value. A
variable whose rows were updated once is therefore copied whenever it is read, and
`keras.layers.Embedding` reads its table twice in each step: for its shape, and to gather from it.
"""

import functools
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import stateless_scope

__all__ = ["read_rows_only"]


def read_rows_only(model: Any) -> None:
    """Has the embedding layers of a built model read rows; they compute what they did before."""
    if not isinstance(model, keras.Model):
        return
    for layer in model._flatten_layers():
        if _is_plain_embedding(layer):
            # Past Keras' `__setattr__`, which would look for things to track.
            layer.__dict__["call"] = functools.partial(_look_up, layer, layer.embeddings.value)


def _is_plain_embedding(layer: Any) -> bool:
    if type(layer).call is not keras.layers.Embedding.call or "call" in layer.__dict__:
        return False
    # With LoRA it looks up in a sum.
    return layer.built and isinstance(layer.embeddings, keras.Variable)


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
