"""Metrics that are reset and read together."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite.common import log_once
from official_lite.core import keras2_idioms

__all__ = ["MetricGroup"]

# Tracing takes as long as so many calls op by op.
_CALLS_BEFORE_TRACING = 20


class MetricGroup:
    """Resets and reads metrics, in one compiled call each where that is possible.

    Op by op a metric takes a millisecond under a strategy, which is as long as a hundred steps of a
    tiny model. Metrics that somebody wrote a `reset_state` or a `result` for are called as they
    are: they may do something in Python. So are all metrics of several replicas.

    A metric of Keras that no step has updated yet is left out of the results, with a warning: its 0
    would look like a bad score.

    Args:
        metrics: The metrics, whose variables are there.
    """

    def __init__(self, metrics: Sequence[Any]) -> None:
        self.metrics = list(metrics)
        is_single = tf.distribute.get_strategy().num_replicas_in_sync == 1
        # Their state is zero after a reset, and not after an update.
        self._not_updated = [one for one in metrics if _is_of_keras(one)]
        self._traceable = [one for one in metrics if is_single and _is_of_keras(one)]
        self._calls = 0
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
        """The values by name, in the order of the metrics."""
        found: dict[int, Any] = {}
        if self._traceable and self._calls > _CALLS_BEFORE_TRACING:
            found = dict(zip(map(id, self._traceable), self._read(), strict=True))
        not_updated = self._find_not_updated()
        logs: dict[str, Any] = {}
        for metric in self.metrics:
            if id(metric) in not_updated:
                continue
            result = found[id(metric)] if id(metric) in found else metric.result()
            logs |= dict(result) if isinstance(result, Mapping) else {metric.name: result}
        return logs

    def _find_not_updated(self) -> set[int]:
        self._not_updated = [
            metric
            for metric in self._not_updated
            if not any(np.any(tf.convert_to_tensor(v).numpy()) for v in metric.variables)
        ]
        for metric in self._not_updated:
            log_once.warn_once(
                "No step has updated the metric `%s`, so it is not reported. A `train_step` or "
                "`validation_step` of your own has to update the metrics that it is given: "
                "`self.process_metrics(metrics, labels, outputs)`.",
                metric.name,
            )
        return {id(metric) for metric in self._not_updated}

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
