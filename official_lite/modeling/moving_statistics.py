"""The moving statistics of batch normalization under several replicas.

Keras 3 has each replica keep those of its own part of the batch, and saves those of the first.
"""

import math
from typing import Any

import keras
import tensorflow as tf

__all__ = ["MovingStatistics"]


class MovingStatistics:
    """Averages the moving means and variances of a model over the replicas.

    They are moving averages, so that to average them after each step is the same as to average what
    goes into them. Layers with `synchronized=True` do so themselves.

    Args:
        model: A built Keras model; of anything else nothing is averaged.
    """

    def __init__(self, model: Any) -> None:
        layers = model._flatten_layers() if isinstance(model, keras.Model) else ()
        self._layers = [
            layer
            for layer in layers
            if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
        ]

    def average(self) -> None:
        """Averages them, in all replicas at once: one exchange for all layers."""
        context = tf.distribute.get_replica_context()
        variables = [
            variable
            for layer in self._layers
            if layer.trainable
            for variable in (layer.moving_mean, layer.moving_variance)
        ]
        if context.num_replicas_in_sync == 1 or not variables:
            return
        flat = tf.concat([tf.reshape(v.value, [-1]) for v in variables], axis=0)
        averaged = context.all_reduce(tf.distribute.ReduceOp.MEAN, flat)
        sizes = [math.prod(v.shape) for v in variables]
        for variable, part in zip(variables, tf.split(averaged, sizes), strict=True):
            variable.assign(tf.reshape(part, variable.shape))
