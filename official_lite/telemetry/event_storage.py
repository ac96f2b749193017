"""Storage that collects values recorded anywhere in a run until a report takes them."""

import collections
import contextlib
import dataclasses
import threading
import types
from collections.abc import Iterator, Mapping
from typing import Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, nested_dict, suggestions
from official_lite.telemetry import graph_metrics, record
from official_lite.telemetry.record import Histogram

__all__ = [
    "ScalarHistory",
    "current_name_scope",
    "name_scope",
    "EventStorage",
    "Events",
    "get_event_storage",
    "put_histogram",
    "put_image",
    "put_scalar",
]


class ScalarHistory:
    """The values of one scalar, with statistics of the most recent ones.

    Args:
      max_length: Maximum number of values to keep. `global_mean` still includes discarded values.
    """

    def __init__(self, max_length: int = 4096) -> None:
        self._values: collections.deque[tuple[float, int]] = collections.deque(maxlen=max_length)
        self._total = 0.0
        self._count = 0.0

    def add(self, value: float, step: int, weight: float = 1) -> None:
        """Add a value recorded at `step`, with `weight` as its weight in `global_mean`."""
        self._values.append((value, step))
        self._total += value * weight
        self._count += weight

    def latest(self) -> float:
        """Return the latest value."""
        return self._values[-1][0]

    def median(self, window: int = 20) -> float:
        """Return the median of the last `window` values."""
        return float(np.median(self._last(window)))

    def mean(self, window: int = 20) -> float:
        """Return the mean of the last `window` values."""
        return float(np.mean(self._last(window)))

    def global_mean(self) -> float:
        """Return the mean of all values ever added, including those no longer kept.

        Values recorded inside a graph during one interval are stored as one value, their mean,
        which is weighted by the number of values recorded.
        """
        return self._total / self._count

    def values(self) -> list[tuple[float, int]]:
        """Return the kept values with their steps, oldest first."""
        return list(self._values)

    def _last(self, window: int) -> list[float]:
        return [value for value, _ in self.values()[-window:]]


_shared: list[str] = []


class _OfReplica(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


_of_replica = _OfReplica()


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Prepend `name/` to the names of all values recorded within the context.

    ::

        with telemetry.name_scope("encoder"):
            telemetry.put_scalar("norm", norm)  # encoder/norm
    """
    # Replica threads may be switched in the middle of a scope, so each thread has its own scopes.
    # Scopes opened around `strategy.run` belong to another thread and apply to all replicas.
    names = _of_replica.names if _runs_on_a_replica() else _shared
    names.append(name)
    try:
        yield
    finally:
        names.pop()


def current_name_scope() -> str:
    """Return the current prefix: empty, or ending with `/`."""
    return "".join(f"{name}/" for name in (*_shared, *_of_replica.names))


def _runs_on_a_replica() -> bool:
    return bool(tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context())


_Fn = TypeVar("_Fn")


def _as_it_stands(function: _Fn) -> _Fn:
    """Exclude a function from AutoGraph, because it decides in Python what to trace."""
    return cast(_Fn, tf.autograph.experimental.do_not_convert(function))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Events:
    """The values recorded during one interval.

    Attributes:
      scalars: Scalars by name: the mean over the interval, or the latest value.
      images: The latest image of each name: `[height, width, channels]`, uint8.
      histograms: Histograms by name, over all values of the interval.
    """

    scalars: Mapping[str, float] = dataclasses.field(default_factory=dict)
    images: Mapping[str, npt.NDArray[np.uint8]] = dataclasses.field(default_factory=dict)
    histograms: Mapping[str, Histogram] = dataclasses.field(default_factory=dict)


class EventStorage:
    """Collects values from hooks, tasks and layers until a report takes them.

    ::

        with telemetry.EventStorage() as storage:
            train()  # somewhere inside: telemetry.put_scalar("encoder/norm", norm)
            storage.take().scalars  # {"encoder/norm": …}

    A `put_*` call in a function that is being traced becomes part of the graph: every later
    execution of the graph records a value. This works inside loops and branches, under XLA and on
    every replica. The values go to the storage that was current during tracing. If no storage was
    current, or if it was muted, they are dropped.

    Attributes:
      step: The step of the values that are recorded and taken now.
    """

    def __init__(self) -> None:
        self.step = 0
        self._num_mutes = 0
        self._hints: dict[str, bool] = {}
        self._scalars: dict[str, _EagerScalar] = {}
        self._images: dict[str, npt.NDArray[np.uint8]] = {}
        self._counts: dict[str, npt.NDArray[np.float64]] = {}
        self._of_graphs: dict[tf.distribute.Strategy, graph_metrics.GraphMetrics] = {}
        self._histories: dict[str, ScalarHistory] = {}

    def __enter__(self) -> Self:
        _current.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        # Not simply the last entry: runs in several threads may end in any order.
        del _current[len(_current) - 1 - _current[::-1].index(self)]

    @_as_it_stands
    def put_scalar(self, name: str, value: tf.Tensor | float, smoothing_hint: bool = True) -> None:
        """Record one number.

        Args:
          name: Name of the scalar. Inside a `name_scope`, the scope is prepended.
          value: A single Python, NumPy or TensorFlow number, which may be a symbolic tensor.
          smoothing_hint: If True, a report shows the mean over its interval and over the replicas.
            If False, it shows the latest value, averaged over the replicas. A value recorded
            outside of a graph counts as later than values recorded inside a graph.

        Raises:
          errors.ConfigValueError: The value is not a single number, or the name was recorded before
            with the other hint.
        """
        if self.is_muted:
            return
        name = current_name_scope() + name
        self._check_hint(name, smoothing_hint)
        if tf.inside_function():
            tensor = _as_single(name, value)
            self._of_this_strategy().put_scalar(name, tensor, keeps_latest=not smoothing_hint)
            return
        number = record.as_number(value)
        if number is None:
            raise _not_a_number(name, value)
        self._scalars.setdefault(name, _EagerScalar()).add(float(number))
        self._add_to_history(name, float(number))

    @_as_it_stands
    def put_image(self, name: str, image: tf.Tensor | npt.NDArray[Any]) -> None:
        """Record an image; a report takes the latest one.

        With several replicas, a report takes the image of the first replica that recorded one.

        Args:
          name: Name of the image. Inside a `name_scope`, the scope is prepended.
          image: `[height, width, channels]` with 1, 3 or 4 channels, or a batch of such images, of
            which the first is used. Floating point from 0 to 1, or uint8. During tracing, the size
            must be known.

        Raises:
          errors.ConfigValueError: The image has another shape or type.
        """
        if self.is_muted:
            return
        name = current_name_scope() + name
        if tf.inside_function():
            self._of_this_strategy().put_image(name, image)
        else:
            self._images[name] = graph_metrics.to_pixels(name, image).numpy().astype(np.uint8)

    @_as_it_stands
    def put_histogram(self, name: str, values: tf.Tensor | npt.NDArray[Any]) -> None:
        """Record values for a histogram; a report takes all values of its interval.

        Args:
          name: Name of the histogram. Inside a `name_scope`, the scope is prepended.
          values: Numbers of any type and shape. Infinite values count as the largest finite value;
            NaN is ignored.
        """
        if self.is_muted:
            return
        name = current_name_scope() + name
        if tf.inside_function():
            self._of_this_strategy().put_histogram(name, values)
        else:
            counts = record.bucket_counts(values).numpy().astype(np.float64)
            self._counts[name] = self._counts.get(name, 0.0) + counts

    def record_report(self, values: record.Values) -> None:
        """Add the values of a report to the histories, without reporting them once more.

        Args:
          values: Numbers by name. Nested names are joined by `/`.
        """
        for name, value in nested_dict.flatten_nested_dict(values, "/").items():
            self._add_to_history(name, float(value))

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Ignore values recorded within the context, including those of functions traced there."""
        self._num_mutes += 1
        try:
            yield
        finally:
            self._num_mutes -= 1

    @property
    def is_muted(self) -> bool:
        """Whether recorded values are currently ignored."""
        return self._num_mutes > 0

    def take(self, from_graphs: bool = True) -> Events:
        """Return everything recorded since the last `take`; names without new values are absent.

        Args:
          from_graphs: Whether to include values recorded inside graphs. They are summed over all
            workers, so all workers must call this method together; a single worker that has failed
            would wait for the others.
        """
        scalars, images, counts = self._scalars, self._images, self._counts
        self._scalars, self._images, self._counts = {}, {}, {}
        for metrics in self._of_graphs.values() if from_graphs else ():
            taken = metrics.take()
            for name, (total, number) in taken.scalars.items():
                self._add_to_history(name, total / number, number)
                scalars.setdefault(name, _EagerScalar()).add_sum(total, number)
            for name, found in taken.histograms.items():
                counts[name] = counts.get(name, 0.0) + found
            images = {**taken.images, **images}
        return Events(
            scalars={name: scalars[name].result(self._hints[name]) for name in sorted(scalars)},
            images={name: images[name] for name in sorted(images)},
            histograms={
                name: record.histogram_of(counts[name])
                for name in sorted(counts)
                if counts[name].any()
            },
        )

    def history(self, name: str) -> ScalarHistory:
        """Return the history of a scalar.

        It contains each single value recorded from Python, and one mean per interval for values
        recorded inside graphs. It also contains what the trainer reports, such as `training_loss`,
        the metrics and `learning_rate`: one value per report, which hooks find from `after_step` of
        the last step of the report's interval on.

        Args:
          name: The full name, including name scopes.

        Raises:
          errors.UnknownNameError: No scalar of that name has been recorded yet.
        """
        if name not in self._histories:
            hint = suggestions.did_you_mean(name, self._histories)
            raise errors.UnknownNameError(
                f"No scalar `{name}` has been recorded yet. {hint}".rstrip()
            )
        return self._histories[name]

    def _of_this_strategy(self) -> graph_metrics.GraphMetrics:
        strategy = tf.distribute.get_strategy()
        if strategy not in self._of_graphs:
            self._of_graphs[strategy] = graph_metrics.GraphMetrics(strategy)
        return self._of_graphs[strategy]

    def _check_hint(self, name: str, smoothing_hint: bool) -> None:
        before = self._hints.setdefault(name, smoothing_hint)
        if before != smoothing_hint:
            raise errors.ConfigValueError(
                f"`{name}` was recorded with smoothing_hint={before} before, and now with "
                f"{smoothing_hint}. Use two different names."
            )

    def _add_to_history(self, name: str, value: float, weight: float = 1) -> None:
        self._histories.setdefault(name, ScalarHistory()).add(value, self.step, weight)


class _NullStorage(EventStorage):
    """The storage that is current outside of a run."""

    @property
    def is_muted(self) -> bool:
        return True


_current: list[EventStorage] = []

_null = _NullStorage()


def get_event_storage(required: bool = False) -> EventStorage:
    """Return the storage of the innermost `with storage:` block, in any thread.

    Args:
      required: Whether to raise if there is no current storage. By default, a storage that drops
        everything is returned, so that a model that records values also works outside of a run.

    Raises:
      errors.ConfigError: There is no current storage and `required` is True.
    """
    if _current:
        return _current[-1]
    if required:
        raise errors.ConfigError(
            "No event storage is open. A `Controller` opens one while it trains; elsewhere use "
            "`with telemetry.EventStorage():`."
        )
    return _null


@_as_it_stands
def put_scalar(name: str, value: tf.Tensor | float, smoothing_hint: bool = True) -> None:
    """Call `EventStorage.put_scalar` of the current storage; do nothing without one."""
    get_event_storage().put_scalar(name, value, smoothing_hint)


@_as_it_stands
def put_image(name: str, image: tf.Tensor | npt.NDArray[Any]) -> None:
    """Call `EventStorage.put_image` of the current storage; do nothing without one."""
    get_event_storage().put_image(name, image)


@_as_it_stands
def put_histogram(name: str, values: tf.Tensor | npt.NDArray[Any]) -> None:
    """Call `EventStorage.put_histogram` of the current storage; do nothing without one."""
    get_event_storage().put_histogram(name, values)


class _EagerScalar:
    """Accumulates the values of one scalar that were recorded eagerly in one interval."""

    def __init__(self) -> None:
        self._total = 0.0
        self._count = 0.0
        self._latest: dict[int, float] = {}

    def add(self, value: float) -> None:
        self.add_sum(value, 1)
        replica = _replica_id()
        if replica == _ALL:
            self._latest.clear()
        else:
            self._latest.pop(_ALL, None)
        self._latest[replica] = value

    def add_sum(self, total: float, count: float) -> None:
        self._total += total
        self._count += count

    def result(self, smoothing_hint: bool) -> float:
        if smoothing_hint or not self._latest:
            return self._total / self._count
        return sum(self._latest.values()) / len(self._latest)


_ALL = -1


def _replica_id() -> int:
    """Return the ID of this replica, or `_ALL` in code that runs once for all replicas."""
    if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
        return _ALL
    return int(tf.distribute.get_replica_context().replica_id_in_sync_group)


def _as_single(name: str, value: tf.Tensor | float) -> tf.Tensor:
    tensor = tf.convert_to_tensor(value)
    if tensor.shape.is_fully_defined() and tensor.shape.num_elements() != 1:
        raise _not_a_number(name, value)
    return tf.reshape(tf.cast(tensor, tf.float32), [])


def _not_a_number(name: str, value: object) -> errors.ConfigValueError:
    shape = getattr(value, "shape", None)
    given = type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
    return errors.ConfigValueError(
        f"`{name}` is a {given}; `put_scalar` requires a single number. For arrays use "
        "`put_histogram`."
    )
