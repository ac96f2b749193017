"""Freezing of parts of a model, so that only the rest is trained."""

import re
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import errors, suggestions

__all__ = ["freeze"]


def freeze(model: keras.Model | tf.Module, patterns: Sequence[str]) -> None:
    """Freeze the variables whose paths match a pattern, before the optimizer is built.

    If the patterns match all weights of a layer, the whole layer is frozen, so that batch
    normalization uses its statistics without updating them. If they match only some weights of a
    layer, those weights get no gradient.

    Args:
        model: A Keras model with existing variables.
        patterns: Regular expressions, searched for anywhere in `variable.path`.

    Raises:
        errors.ConfigValueError: A pattern matches no variable. The patterns match statistics that a
          layer would continue to update, but not the whole layer. No trainable variable would
          remain.
    """
    if not patterns:
        return
    if not isinstance(model, keras.Model):
        raise errors.ConfigValueError(
            "`trainer.freeze` supports only Keras models, but the task's model is a "
            f"{type(model).__name__}."
        )
    meant = {id(v): v for pattern in patterns for v in _fitting(model, pattern)}
    for layer in model._flatten_layers(include_self=False):
        weights = layer.weights
        if weights and all(id(weight) in meant for weight in weights):
            layer.trainable = False
    for layer in model._flatten_layers():
        _freeze_single_weights(layer, meant)
    if not model.trainable_variables:
        raise errors.ConfigValueError(
            f"`trainer.freeze` {list(patterns)} freezes all weights of {model.name!r}, so nothing "
            "is left to train."
        )
    logging.info("Froze %d of %d weights.", len(meant), len(model.weights))


def _fitting(model: keras.Model, pattern: str) -> list[Any]:
    found = [weight for weight in model.weights if re.search(pattern, weight.path)]
    if not found:
        paths = [weight.path for weight in model.weights]
        raise errors.ConfigValueError(
            f"`trainer.freeze` has {pattern!r}, which matches no variable. "
            f"{suggestions.did_you_mean(pattern, paths)}"
        )
    return found


def _freeze_single_weights(layer: keras.Layer, meant: dict[int, Any]) -> None:
    if not layer.trainable:
        return
    for variable in [*layer._trainable_variables, *layer._non_trainable_variables]:
        if id(variable) not in meant:
            continue
        if not variable.trainable:
            raise errors.ConfigValueError(
                f"`trainer.freeze` matches {variable.path!r}, which its layer updates during "
                f"training. Freeze the whole layer instead: {_folder_of(variable.path)!r}."
            )
        variable.trainable = False


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0] + "/"
