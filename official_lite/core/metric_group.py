"""Metrics that are reset and read together."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.core import keras2_idioms

__all__ = ["MetricGroup", "compiled_metrics", "model_metrics"]

# Tracing takes as long as so many calls op by op.
_CALLS_BEFORE_TRACING = 20

# Metrics of which any update changes a variable. Of others, such as a sum or a recall, all may
# still be 0 after one.
_COUNTING = (
    keras.metrics.Mean,
    keras.metrics.AUC,
    keras.metrics.IoU,
    keras.metrics.R2Score,
    keras.metrics.PrecisionAtRecall,
    keras.metrics.RecallAtPrecision,
    keras.metrics.SensitivityAtSpecificity,
    keras.metrics.SpecificityAtSensitivity,
)


def model_metrics(model: Any) -> list[keras.metrics.Metric]:
    """The metrics that a model brings, but for Keras' own mean of the loss, which is `fit`'s."""
    loss_tracker = getattr(model, "_loss_tracker", None)
    return [metric for metric in getattr(model, "metrics", ()) if metric is not loss_tracker]


def compiled_metrics(model: Any) -> Any:
    """The one metric in which Keras keeps those given to `compile`; None if there are none."""
    if not getattr(model, "compiled", False):
        return None
    found = (metric for metric in model.metrics if metric.name == "compile_metrics")
    return next(found, None)


class MetricGroup:
    """Resets and reads metrics, in one compiled call each where that is possible.

    Op by op a metric takes a millisecond under a strategy, which is as long as a hundred steps of a
    tiny model. Metrics that somebody wrote a `reset_state` or a `result` for are called as they
    are: they may do something in Python. So are all metrics of several replicas.

    Args:
        metrics: The metrics, whose variables are there.
    """

    def __init__(self, metrics: Sequence[Any]) -> None:
        self.metrics = list(metrics)
        is_single = tf.distribute.get_strategy().num_replicas_in_sync == 1
        self._traceable = [one for one in metrics if is_single and _is_of_keras(one)]
        self._calls = 0
        # By their ids: those that a step has updated, and those that were found without an update.
        self._updated: set[int] = set()
        self._missed: set[int] = set()
        self._reset: Callable[[], None] = tf.function(self._reset_traceable, autograph=False)
        self._read: Callable[[], list[Any]] = tf.function(self._read_traceable, autograph=False)

    def reset(self) -> None:
        """Lets all begin anew."""
        self._calls += 1
        traced: list[Any] = []
        if self._traceable and self._calls > _CALLS_BEFORE_TRACING:
            self._reset()
            traced = self._traceable
        for metric in self.metrics:
            if not any(metric is one for one in traced):
                keras2_idioms.reset_metric(metric)

    def results(self) -> dict[str, Any]:
        """The values by name, in the order of the metrics.

        A metric that no step has updated is left out, with a warning: its value, mostly 0, is none.
        """
        found: dict[int, Any] = {}
        if self._traceable and self._calls > _CALLS_BEFORE_TRACING:
            found = dict(zip(map(id, self._traceable), self._read(), strict=True))
        logs: dict[str, Any] = {}
        for metric in self.metrics:
            if not self._is_reported(metric):
                continue
            result = found[id(metric)] if id(metric) in found else metric.result()
            logs |= dict(result) if isinstance(result, Mapping) else {metric.name: result}
        return logs

    def _is_reported(self, metric: Any) -> bool:
        """False as long as no step has updated the metric."""
        if id(metric) in self._updated:
            return True
        if _has_counted(metric):
            self._updated.add(id(metric))
            return True
        if id(metric) not in self._missed:
            self._missed.add(id(metric))
            logging.warning(
                "No step has updated the metric `%s`, so it is not reported. A `train_step` or "
                "`validation_step` of your own has to call `self.update_metrics(model, metrics, "
                "labels, outputs)`, or update each of them.",
                metric.name,
            )
        return False

    def _reset_traceable(self) -> None:
        for metric in self._traceable:
            metric.reset_state()

    def _read_traceable(self) -> list[Any]:
        return [metric.result() for metric in self._traceable]


def _is_of_keras(metric: Any) -> bool:
    if not isinstance(metric, keras.Metric) or metric._metrics:
        return False
    methods = (getattr(type(metric), name, None) for name in ("reset_state", "result"))
    own_word = getattr(type(metric), "reset_states", None)
    is_renamed = own_word is None or own_word.__module__ == keras2_idioms.__name__
    return is_renamed and all(method.__module__.startswith("keras.") for method in methods)


def _has_counted(metric: Any) -> bool:
    if metric.name == "compile_metrics":
        return metric.built and all(_has_counted(part) for part in metric.metrics)
    if not isinstance(metric, _COUNTING):
        return True
    return any(tf.math.count_nonzero(v) > 0 for v in metric.variables)
