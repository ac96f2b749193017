"""Pruning and clustering of a model as its config says, after every update of its optimizer."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import errors
from official_lite.compression import clustering, configs, kernels, pruning
from official_lite.compression.weight_projection import WeightProjection
from official_lite.modeling import distributed_gradients

__all__ = ["create_projections"]


def create_projections(
    config: configs.CompressionConfig | None,
    model: keras.Model | tf.Module,
    optimizer: keras.optimizers.Optimizer,
    train_steps: int = 0,
) -> dict[str, WeightProjection]:
    """Create the projections of a config, and let the optimizer apply them; call this in the scope.

    Args:
        config: The config; None for none.
        model: A built model.
        optimizer: The optimizer, prepared by `optimizer_factory.prepare_optimizer`.
        train_steps: The length of the training, for a warning if it is too short; 0 if unknown.

    Returns:
        The projections, by the name of their config. Save them in the checkpoints.

    Raises:
        errors.ConfigValueError: The patterns of the config do not fit the model, or the model or
            the optimizer is not one of Keras.
    """
    found: dict[str, WeightProjection] = {}
    if config is None or not (config.pruning or config.clustering):
        return found
    if not isinstance(model, keras.Model):
        raise errors.ConfigValueError(
            "`task.compression` supports only Keras models, but the task's model is a "
            f"{type(model).__name__}."
        )
    if own := config.clustering:
        block = "compression.clustering"
        selected = kernels.find_kernels(model, own.include, own.exclude, block=block)
        found["clustering"] = clustering.WeightClustering(own, selected)
    if own_pruning := config.pruning:
        block = "compression.pruning"
        selected = kernels.find_kernels(
            model, own_pruning.include, own_pruning.exclude, block=block
        )
        # After clustering, so that what is pruned is 0 in any case.
        found["pruning"] = pruning.MagnitudePruning(own_pruning, selected)
    _warn_of_short_training(found, train_steps)

    def project(variables: Sequence[Any]) -> None:
        for projection in found.values():
            projection.project(variables)

    distributed_gradients.project_weights(optimizer, project)
    return found


def _warn_of_short_training(found: dict[str, WeightProjection], train_steps: int) -> None:
    for name, projection in found.items():
        last = max(projection.steps)
        if 0 < train_steps < last:
            logging.warning(
                "`compression.%s` changes the weights until step %d, but training ends at step %d.",
                name,
                last,
                train_steps,
            )
