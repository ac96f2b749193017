"""What the class of a compiled Keras model overrides, as `fit` allows."""

import weakref
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import log_once

__all__ = ["overrides", "warn_of_overridden_step", "warn_of_unreported"]

# The models for which a warning was logged.
_told: weakref.WeakSet[Any] = weakref.WeakSet()


def overrides(model: Any, name: str) -> bool:
    """Return whether the class of a model overrides a method of `keras.Model`."""
    is_of_keras = getattr(type(model), name, None) is getattr(keras.Model, name)
    return isinstance(model, keras.Model) and not is_of_keras


def warn_of_overridden_step(
    model: keras.Model | tf.Module, task: Any, base: type, name: str
) -> None:
    """Warn about a step of a Keras model that `fit` would call and the trainer does not.

    Args:
        model: The model.
        task: The task. One that overrides its own step may call the step of the model.
        base: The class that defines the default steps of a task.
        name: The name of the step of the task.
    """
    in_keras = "test_step" if name == "validation_step" else name
    if overrides(model, in_keras) and getattr(type(task), name) is getattr(base, name):
        log_once.warn_once(
            "`%s.%s` is never called, because the step of the task is used instead. Move the code "
            "to `%s.%s`; see docs/coming_from_keras.md.",
            type(model).__name__,
            in_keras,
            type(task).__name__,
            name,
        )


def warn_of_unreported(model: keras.Model, results: Any) -> None:
    """Warn once about results of `compute_metrics` that no metric of the model holds."""
    if model in _told:
        return
    _told.add(model)
    known = {"loss"}
    for metric in model.metrics:
        result = metric.result() if getattr(metric, "built", True) else None
        known |= set(result) if isinstance(result, Mapping) else {metric.name}
    unknown = sorted(set(results or ()) - known)
    if unknown:
        logging.warning(
            "`%s.compute_metrics` returns %s, but a run reports only what metrics hold. Keep the "
            "value in a `keras.metrics.Mean` that is an attribute of the model.",
            type(model).__name__,
            ", ".join(unknown),
        )
