"""Words of Keras 2 that tasks of the Model Garden use on objects of Keras.

Optimizers get theirs where they are built; metrics are made by the tasks themselves, so the word is
given to the class.
"""

from typing import Any

import keras

__all__ = ["install", "reset_metric"]


def install() -> None:
    """Lets `metric.reset_states()` mean `metric.reset_state()`, for every Keras metric."""
    if not hasattr(keras.metrics.Metric, "reset_states"):
        keras.metrics.Metric.reset_states = _reset_states


def reset_metric(metric: Any) -> None:
    """Resets a metric by the method that its author wrote, whichever word that was."""
    own_word = getattr(type(metric), "reset_states", _reset_states)
    if own_word is _reset_states:
        metric.reset_state()
    else:
        metric.reset_states()


def _reset_states(self: keras.metrics.Metric) -> None:
    self.reset_state()
