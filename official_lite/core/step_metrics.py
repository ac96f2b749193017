"""Utilities for step metrics: metric groups, and means over examples."""

import collections
import contextlib
import functools
import inspect
import itertools
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import errors, keras_variables, nests, user_code
from official_lite.orbit.utils import loop_fns

__all__ = [
    "add_loss",
    "install",
    "kept",
    "name_apart",
    "reset_metric",
    "MetricGroup",
    "MetricGroups",
    "compiled_metrics",
    "model_metrics",
    "num_examples",
    "weight_of_part",
    "BatchMean",
]


def install() -> None:
    """Add `reset_states` to all Keras metrics, as an alias of `reset_state`."""
    if not hasattr(keras.metrics.Metric, "reset_states"):
        keras.metrics.Metric.reset_states = _reset_states


def reset_metric(metric: keras.metrics.Metric) -> None:
    """Reset a metric with `reset_states` if its class defines that method, else `reset_state`."""
    own_word = getattr(type(metric), "reset_states", _reset_states)
    if own_word is _reset_states:
        metric.reset_state()
    else:
        metric.reset_states()


def _reset_states(self: keras.metrics.Metric) -> None:
    self.reset_state()


@contextlib.contextmanager
def kept(metrics: Sequence[Any]) -> Iterator[None]:
    """Restore the values of metrics at the end of the context, on all replicas of this host."""
    before = [list(getattr(metric, "variables", ())) for metric in metrics]
    copies = [copy for v in itertools.chain(*before) for copy in keras_variables.local_values(v)]
    values = [copy.read_value() for copy in copies]
    try:
        yield
    finally:
        for metric, variables in zip(metrics, before, strict=True):
            if len(getattr(metric, "variables", ())) > len(variables):
                # Variables that the metric created inside the context have no earlier values to
                # restore.
                reset_metric(metric)
        for copy, value in zip(copies, values, strict=True):
            copy.assign(value)


# The metrics that `name_apart` has named.
_named_here: weakref.WeakSet[keras.metrics.Metric] = weakref.WeakSet()


def name_apart(
    metrics: Sequence[Any], source: str, model: keras.Model | tf.Module | None = None
) -> None:
    """Give unique names to the metrics that were created without a name.

    Keras numbers such metrics throughout the process: `auc` in the first list, `auc_1` in the next
    one. This function numbers each list from the beginning, so that the names depend only on the
    list, and skips names that are taken.

    Args:
        metrics: The metrics of a task. If possible, they keep the names from an earlier call.
        source: The method that returned the metrics, for the error message.
        model: The model, if its metrics are reported together with these.

    Raises:
        errors.ConfigValueError: If two metrics were given the same name.
    """
    found = [] if model is None else model_metrics(model)
    compiled = None if model is None else compiled_metrics(model)
    parts = [] if compiled is None else compiled.metrics
    layers = [one for one in found if one is not compiled]
    _number(parts, [])
    # If a model has several outputs, Keras prefixes the names of `parts` with the output names, so
    # the names without a prefix are not taken.
    has_outputs = compiled is not None and len(compiled.output_names or ()) > 1
    taken = set() if has_outputs else {one.name for one in parts}
    # Several layers of one class may each have a metric of the same name.
    _number(layers, taken, also_repeated=True)
    taken |= {one.name for one in layers}
    own = [one for one in _once(metrics) if not any(one is other for other in (*parts, *layers))]
    _number(own, taken)
    counts = collections.Counter([*taken, *(one.name for one in own)])
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise errors.ConfigValueError(
            f"{source} returned a metric named `{repeated[0]}`, but another metric that is "
            "reported with it has the same name, so one of the two would be lost. Give each "
            f'metric its own name, such as `name="{repeated[0]}_2"`.'
        )


def _number(metrics: Sequence[Any], taken: Iterable[str], *, also_repeated: bool = False) -> None:
    """Append numbers to generated metric names and, with `also_repeated`, to repeated names."""
    names, to_number = set(taken), []
    for metric in _once(metrics):
        if _has_automatic_name(metric):
            to_number.append((metric, _snake_case(type(metric).__name__)))
        elif also_repeated and metric.name in names:
            to_number.append((metric, metric.name))
        else:
            names.add(metric.name)
    for metric, first in sorted(to_number, key=lambda pair: pair[0] not in _named_here):
        wanted = metric.name if metric in _named_here else first
        numbered = (f"{first}_{number}" for number in itertools.count(1))
        candidates = itertools.chain([wanted, first], numbered)
        metric.name = next(name for name in candidates if name not in names)
        _named_here.add(metric)
        names.add(metric.name)


def _once(metrics: Iterable[Any]) -> list[Any]:
    """Return the metrics in order, without duplicates of the same object."""
    return list({id(metric): metric for metric in metrics}.values())


def _has_automatic_name(metric: Any) -> bool:
    """Return whether a metric was created without a name, so that Keras generated one."""
    if not isinstance(metric, keras.Metric):
        return False
    if metric in _named_here:
        return True
    parameter = inspect.signature(type(metric).__init__).parameters.get("name")
    if parameter is not None and parameter.default is not None:
        return False
    first = _snake_case(type(metric).__name__)
    number = re.fullmatch(rf"{re.escape(first)}(?:_(\d+))?", metric.name)
    # If the number is larger than any that Keras has assigned, the user chose the name.
    return number is not None and int(number[1] or 0) < keras_variables.name_counts().get(first, 0)


def _snake_case(name: str) -> str:
    """Return the name that Keras generates for the first object of a class."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


# Tracing takes about as long as this number of eager calls.
_CALLS_BEFORE_TRACING = 20

# The metrics whose `update_state` has been called, eagerly or while a graph was traced.
_updated: weakref.WeakSet[Any] = weakref.WeakSet()

# Metrics whose `update_state`, unless a subclass overrides it, always changes a variable if any
# sample weight is positive. In other metrics, such as a sum or a recall, all variables may still be
# 0 after an update.
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
    # Keras lists the metrics of nested layers once per nesting level.
    metrics = _once(getattr(model, "metrics", ()))
    return [metric for metric in metrics if metric is not loss_tracker]


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
    they may run Python code. With several replicas, all metrics are called eagerly.

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
        self._has_traced = False
        # The ids of the metrics that a step has updated.
        self._updated: set[int] = set()
        for metric in self.metrics:
            _note_updates(metric)
        # The ids of the metrics for which `_is_reported` has logged a warning.
        self._missed: set[int] = set()
        self._reset: Any = tf.function(self._reset_traceable, autograph=False)
        self._read: Any = tf.function(self._read_traceable, autograph=False)

    def reset(self) -> None:
        """Reset all metrics."""
        self._calls += 1
        traced: list[Any] = []
        if self._is_traced():
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
        if self._is_traced():
            found = dict(zip(map(id, self._traceable), self._read(), strict=True))
        logs: dict[str, Any] = {}
        for metric in _once(self.metrics):
            if not self._is_reported(metric):
                continue
            result = found[id(metric)] if id(metric) in found else metric.result()
            values = _values(metric.name, result)
            if repeated := sorted(values.keys() & logs.keys()):
                raise errors.ConfigValueError(
                    f"Two metrics report a value named `{repeated[0]}`, so one of the two would be "
                    "lost. Use a different name for each metric and for each key of a dictionary "
                    "that `result` returns."
                )
            logs |= values
        return logs

    def _is_traced(self) -> bool:
        """Return whether to use compiled calls, which are traced after a number of eager calls."""
        if not self._traceable or self._calls <= _CALLS_BEFORE_TRACING:
            return False
        if not self._has_traced:
            try:
                self._reset.get_concrete_function()
                self._read.get_concrete_function()
            except Exception:  # Tracing may raise errors that eager calls do not.
                self._traceable = []
            # Trace only once, because looking up a concrete function takes longer than calling it.
            self._has_traced = True
        return bool(self._traceable)

    def _is_reported(self, metric: keras.metrics.Metric) -> bool:
        """Return whether a step has updated the metric; warn once if not."""
        if id(metric) in self._updated:
            return True
        if metric in _updated or _may_have_counted(metric):
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


class MetricGroups:
    """The groups of metrics by name; see `MetricGroup`."""

    def __init__(self, *, compiles: bool) -> None:
        self._compiles = compiles
        self._groups: dict[str, MetricGroup] = {}

    def get(self, name: str, metrics: Sequence[Any]) -> MetricGroup:
        """Return the group with a name; rebuild it if its list of metrics has changed."""
        group = self._groups.get(name)
        if group is None or [*map(id, group.metrics)] != [*map(id, metrics)]:
            group = self._groups[name] = MetricGroup(metrics, compiles=self._compiles)
        return group


def _is_of_keras(metric: keras.metrics.Metric) -> bool:
    if not isinstance(metric, keras.Metric) or metric._metrics:
        return False
    methods = (getattr(type(metric), name, None) for name in ("reset_state", "result"))
    own_word = getattr(type(metric), "reset_states", None)
    is_renamed = own_word is None or own_word.__module__ == __name__
    return is_renamed and all(method.__module__.startswith("keras.") for method in methods)


def _note_updates(metric: Any) -> None:
    """Make a metric for which `_is_certain` holds add itself to `_updated` in `update_state`.

    In a graph, `update_state` is called during tracing.
    """
    if not _is_certain(metric) or "update_state" in vars(metric):
        return
    update = metric.update_state

    @functools.wraps(update)
    def update_state(*args: Any, **kwargs: Any) -> Any:
        _updated.add(metric)
        return update(*args, **kwargs)

    # Bypass Keras' `__setattr__`, which would track the value.
    vars(metric)["update_state"] = update_state


def _is_certain(metric: Any) -> bool:
    """Return whether unchanged variables prove that a metric has not been updated."""
    is_known = isinstance(metric, _COUNTING) or getattr(metric, "name", "") == "compile_metrics"
    return is_known and type(metric).update_state.__module__.startswith("keras.")


def _may_have_counted(metric: Any) -> bool:
    if not _is_certain(metric):
        return True
    return any(tf.math.count_nonzero(v) > 0 for v in metric.variables)


def _values(name: str, result: Any) -> dict[str, Any]:
    """Return a metric's values by name; as in `fit`, a dictionary result keeps its keys."""
    if not isinstance(result, Mapping):
        return {name: result}
    # The result of the compiled metrics contains any dictionaries that single metrics return.
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
        self, values: tf.Tensor, sample_weight: tf.Tensor | None = None, *, batch: nests.Nest = None
    ) -> None:
        size = None
        if sample_weight is None and tf.convert_to_tensor(values).shape.rank == 0:
            size = _fetched_size() if batch is None else num_examples(batch)
        if size is None:
            super().update_state(values, sample_weight)
            return
        weight = tf.cast(size, tf.float32)
        # Replace the NaN mean of an empty batch, because NaN times a weight of zero is NaN.
        super().update_state(tf.where(weight > 0, tf.cast(values, tf.float32), 0.0), weight)


def add_loss(mean: keras.metrics.Mean, loss: tf.Tensor, weight: tf.Tensor | None) -> None:
    """Add the loss of a batch to a mean.

    Args:
        mean: The mean.
        loss: The loss, which is NaN if the batch has no examples.
        weight: The weight of the batch, 0 if it has no examples; None if it is 1.
    """
    if weight is not None:
        # Replace the NaN loss of an empty batch, because NaN times a weight of zero is NaN.
        loss = tf.where(weight > 0, loss, tf.zeros_like(loss))
    mean.update_state(loss, weight)


def num_examples(batch: nests.Nest) -> tf.Tensor | None:
    """Return the number of examples; None if no tensor of the batch has a batch dimension.

    The result is a constant if the number is known while the step is traced.
    """
    tensors = [x for x in tf.nest.flatten(batch) if tf.is_tensor(x)]
    batched = [x for x in tensors if x.shape.rank is None or x.shape.rank > 0]
    if not batched:
        return None
    known = batched[0].shape.rank and batched[0].shape[0]
    if known is not None:
        return tf.constant(known, tf.int64)
    return tf.shape(batched[0], out_type=tf.int64)[0]


def weight_of_part(
    num_examples: tf.Tensor | None, num_parts: int, size: int | None
) -> tf.Tensor | None:
    """Return the weight of a part of an update's data: 1 for a complete part.

    The weight applies to micro-batches in an update, and to all batches in the training loss.

    Args:
        num_examples: The number of examples in the part; None if it is unknown.
        num_parts: The number of parts in an update.
        size: The number of examples in an update, if known.

    Returns:
        The number of examples in the part, relative to a complete part; None if all parts have the
        same weight.
    """
    if not size or num_examples is None:
        return None
    # If the number of examples is a constant in the graph, all batches have the same size.
    if not tf.executing_eagerly() and tf.get_static_value(num_examples) is not None:
        return None
    return tf.cast(num_examples, tf.float32) / (size / num_parts)


def _fetched_size() -> tf.Tensor | None:
    """Return the size of this replica's part of the batch that the current step has fetched."""
    context = tf.distribute.get_replica_context()
    batch = loop_fns.current_batch()
    if context is None or batch is None:
        return None
    present = [part for part in tf.nest.flatten(batch) if part is not None]
    parts = zip(*map(context.strategy.experimental_local_results, present), strict=True)
    sizes = [num_examples(part) for part in parts]
    if not sizes or sizes[0] is None:
        return None
    # All workers have the same number of replicas, so the remainder is the local replica id.
    return tf.stack(sizes)[context.replica_id_in_sync_group % len(sizes)] if sizes[1:] else sizes[0]
