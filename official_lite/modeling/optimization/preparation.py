"""Preparation of an optimizer before the first step is traced."""

from typing import Any

import keras
from absl import logging

from official_lite.modeling import distributed_gradients, embedding_lookups
from official_lite.modeling.optimization import ema_optimizer

__all__ = ["prepare_optimizer"]


def prepare_optimizer(optimizer: Any, model: Any) -> Any:
    """Make the optimizer distributed, create all its variables, and return it.

    The optimizer is built on all variables at once, because an optimizer that was built on some
    variables rejects the others. An object that is not a Keras optimizer is returned unchanged.

    Args:
        optimizer: The optimizer, built from a config or by the task.
        model: Any object with built variables and a `trainable_variables` attribute.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return optimizer
    optimizer = distributed_gradients.make_distributed(optimizer)
    average = ema_optimizer.get_moving_average(optimizer)
    if average is not None and not average.has_shadow_copy:
        average.shadow_copy(model)
    if not optimizer.built:
        optimizer.build(list(model.trainable_variables))
    if distributed_gradients.updates_rows(optimizer):
        embedding_lookups.read_rows_only(model)
        _warn_of_passes_over_tables(optimizer, model)
    return optimizer


def _warn_of_passes_over_tables(optimizer: Any, model: Any) -> None:
    large = [
        table.path for table in embedding_lookups.tables(model) if embedding_lookups.is_large(table)
    ]
    if not large or ema_optimizer.get_moving_average(optimizer) is None:
        return
    logging.warning(
        "The optimizer updates some rows of %s in a step, but the moving average of the weights "
        "(`optimizer_config.ema`) passes over all of them. See docs/embeddings.md.",
        ", ".join(large),
    )
