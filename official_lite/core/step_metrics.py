"""Utilities for the metrics of steps: groups of metrics, and means over examples."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import types, user_code
from official_lite.orbit.utils import step_guard

__all__ = [
    "install",
    "reset_metric",
    "MetricGroup",
    "compiled_metrics",
    "model_metrics",
    "BatchMean",
]


def install() -> None:
    """Add `reset_states` to all Keras metrics, as an alias of `reset_state`."""
    if not hasattr(keras.metrics.Metric, "reset_states"):
        keras.metrics.Metric.reset_states = _reset_states


def reset_metric(metric: keras.metrics.Metric) -> None:
    """Reset a metric with its own `reset_states`, if its class defines one, or `reset_state`."""
    own_word = getattr(type(metric), "reset_states", _reset_states)
    if own_word is _reset_states:
        metric.reset_state()
    else:
        metric.reset_states()


def _reset_states(self: keras.metrics.Metric) -> None:
    self.reset_state()


# Tracing takes about as long as this number of eager calls.
_CALLS_BEFORE_TRACING = 20

# Metrics in which every update changes a variable. In others, such as a sum or a recall, all
# variables may still be 0 after an update.
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


def model_metrics(model: keras.Model | tf.Module) -> list[keras.metrics.Metric]:
    """Return a model's metrics, without the loss tracker that Keras adds for `fit`."""
    loss_tracker = getattr(model, "_loss_tracker", None)
    return [metric for metric in getattr(model, "metrics", ()) if metric is not loss_tracker]


def compiled_metrics(model: keras.Model | tf.Module) -> keras.metrics.Metric | None:
    """Return the metric in which Keras wraps the metrics of `compile`; None if there are none."""
    if not getattr(model, "compiled", False):
        return None
    found = (metric for metric in model.metrics if metric.name == "compile_metrics")
    return next(found, None)


class MetricGroup:
    """Group of metrics that are reset and read together, in one compiled call if possible.

    In eager mode, a metric takes about a millisecond under a strategy, as long as a hundred steps
    of a tiny model. Metrics with a custom `reset_state` or `result` are called eagerly, because
    they may run Python code. So are all metrics if there are several replicas.

    Args:
        metrics: The metrics, whose variables must exist.
        compiles: Whether to compile calls. The values may differ from those of eager calls in the
            last bit.
    """

    def __init__(self, metrics: Sequence[Any], *, compiles: bool = True) -> None:
        self.metrics = list(metrics)
        is_single = compiles and tf.distribute.get_strategy().num_replicas_in_sync == 1
        self._traceable = [one for one in metrics if is_single and _is_of_keras(one)]
        self._calls = 0
        # The ids of the metrics that a step has updated, and of those found without an update.
        self._updated: set[int] = set()
        self._missed: set[int] = set()
        self._reset: Callable[[], None] = tf.function(self._reset_traceable, autograph=False)
        self._read: Callable[[], list[Any]] = tf.function(self._read_traceable, autograph=False)

    def reset(self) -> None:
        """Reset all metrics."""
        self._calls += 1
        traced: list[Any] = []
        if self._traceable and self._calls > _CALLS_BEFORE_TRACING:
            self._reset()
            traced = self._traceable
        for metric in self.metrics:
            if not any(metric is one for one in traced):
                reset_metric(metric)

    def results(self) -> dict[str, Any]:
        """Return the values by name, in the order of the metrics.

        A metric that no step has updated is omitted with a warning, because its value, usually 0,
        is meaningless.
        """
        found: dict[int, Any] = {}
        if self._traceable and self._calls > _CALLS_BEFORE_TRACING:
            found = dict(zip(map(id, self._traceable), self._read(), strict=True))
        logs: dict[str, Any] = {}
        for metric in self.metrics:
            if not self._is_reported(metric):
                continue
            result = found[id(metric)] if id(metric) in found else metric.result()
            logs |= _values(metric.name, result)
        return logs

    def _is_reported(self, metric: keras.metrics.Metric) -> bool:
        """Return whether a step has updated the metric; warn once if not."""
        if id(metric) in self._updated:
            return True
        if _has_counted(metric):
            self._updated.add(id(metric))
            return True
        if id(metric) not in self._missed:
            self._missed.add(id(metric))
            logging.warning(
                "No step has updated the metric `%s`, so it is not reported. If you override "
                "`train_step` or `validation_step`, call `self.update_metrics(model, metrics, "
                "labels, outputs)` or update each metric.",
                metric.name,
            )
        return False

    def _reset_traceable(self) -> None:
        for metric in self._traceable:
            metric.reset_state()

    def _read_traceable(self) -> list[Any]:
        return [metric.result() for metric in self._traceable]


def _is_of_keras(metric: keras.metrics.Metric) -> bool:
    if not isinstance(metric, keras.Metric) or metric._metrics:
        return False
    methods = (getattr(type(metric), name, None) for name in ("reset_state", "result"))
    own_word = getattr(type(metric), "reset_states", None)
    is_renamed = own_word is None or own_word.__module__ == __name__
    return is_renamed and all(method.__module__.startswith("keras.") for method in methods)


def _has_counted(metric: keras.metrics.Metric) -> bool:
    if metric.name == "compile_metrics":
        return metric.built and all(_has_counted(part) for part in metric.metrics)
    if not isinstance(metric, _COUNTING):
        return True
    return any(tf.math.count_nonzero(v) > 0 for v in metric.variables)


def _values(name: str, result: Any) -> dict[str, Any]:
    """Return the values of a metric by name; as in `fit`, a dictionary brings its own names."""
    if not isinstance(result, Mapping):
        return {name: result}
    # The result of a compiled model contains the dictionaries of its metrics.
    return {k: v for own, value in result.items() for k, v in _values(own, value).items()}


class BatchMean(keras.metrics.Mean):
    """Mean over examples that is updated with the means of batches.

    A scalar is weighted by the number of examples in its batch, which may be partial or empty. If
    no batch is given, the batch that the current step has fetched on this replica is used. A step
    written for a plain `keras.metrics.Mean` therefore also yields the mean over all examples. With
    a `sample_weight`, or for values other than scalars, this is a plain `keras.metrics.Mean`.
    """

    @user_code.not_converted
    def update_state(
        self, values: tf.Tensor, sample_weight: tf.Tensor | None = None, *, batch: types.Nest = None
    ) -> None:
        size = None
        if sample_weight is None and tf.convert_to_tensor(values).shape.rank == 0:
            size = _fetched_size() if batch is None else _batch_size(batch)
        if size is None:
            super().update_state(values, sample_weight)
            return
        weight = tf.cast(size, tf.float32)
        # The mean over no examples is NaN, and NaN times a weight of zero is NaN.
        super().update_state(tf.where(weight > 0, tf.cast(values, tf.float32), 0.0), weight)


def _batch_size(batch: types.Nest) -> tf.Tensor | None:
    """Return the number of examples; None if no tensor of the batch has a batch dimension."""
    tensors = [x for x in tf.nest.flatten(batch) if tf.is_tensor(x)]
    batched = [x for x in tensors if x.shape.rank is None or x.shape.rank > 0]
    return tf.shape(batched[0], out_type=tf.int64)[0] if batched else None


def _fetched_size() -> tf.Tensor | None:
    """Return the size of this replica's part of the batch that the current step has fetched."""
    context = tf.distribute.get_replica_context()
    batch = step_guard.current_batch()
    if context is None or batch is None:
        return None
    parts = zip(
        *map(context.strategy.experimental_local_results, tf.nest.flatten(batch)), strict=True
    )
    sizes = [_batch_size(part) for part in parts]
    if not sizes or sizes[0] is None:
        return None
    # Every worker has the same number of replicas.
    return tf.stack(sizes)[context.replica_id_in_sync_group % len(sizes)] if sizes[1:] else sizes[0]
