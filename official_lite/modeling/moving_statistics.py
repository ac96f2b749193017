"""Averaging of batch normalization's moving statistics over replicas.

In Keras 3 each replica keeps the statistics of its own part of the batch, and a checkpoint holds
only the statistics of the first replica.
"""

import math

import keras
import tensorflow as tf

__all__ = ["MovingStatistics"]


class MovingStatistics:
    """Synchronizer that averages the moving means and variances of a model over the replicas.

    The statistics are moving averages, so averaging them after each step is equivalent to averaging
    the values that enter them. Layers with `synchronized=True` are skipped, because they
    average the statistics themselves.

    Args:
        model: A built Keras model. For any other object, nothing is averaged.
    """

    def __init__(self, model: keras.Model | tf.Module) -> None:
        layers = model._flatten_layers() if isinstance(model, keras.Model) else ()
        self._layers = [
            layer
            for layer in layers
            if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
        ]

    def average(self) -> None:
        """Average the statistics of all layers in one all-reduce; call this in every replica."""
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
