"""Where numbers wait, from wherever they come up, until a report takes them."""

import contextlib
import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, suggestions
from official_lite.telemetry import graph_metrics, histogram, name_scopes, pixels, record
from official_lite.telemetry.histogram import Histogram
from official_lite.telemetry.scalar_history import ScalarHistory

__all__ = [
    "EventStorage",
    "Events",
    "get_event_storage",
    "put_histogram",
    "put_image",
    "put_scalar",
]

_Fn = TypeVar("_Fn")


def _as_it_stands(function: _Fn) -> _Fn:
    """Keeps AutoGraph from rewriting a function that decides in Python what to trace."""
    return cast(_Fn, tf.autograph.experimental.do_not_convert(function))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Events:
    """What came up in an interval.

    Attributes:
      scalars: By name: the mean, or the latest value.
      images: By name: the latest, `[height, width, channels]`, uint8.
      histograms: By name: the values of the whole interval.
    """

    scalars: Mapping[str, float] = dataclasses.field(default_factory=dict)
    images: Mapping[str, npt.NDArray[np.uint8]] = dataclasses.field(default_factory=dict)
    histograms: Mapping[str, Histogram] = dataclasses.field(default_factory=dict)


class EventStorage:
    """Takes numbers from hooks, tasks and layers; a report takes what has come up.

    ::

        with telemetry.EventStorage() as storage:
            train()  # somewhere inside: telemetry.put_scalar("encoder/norm", norm)
            storage.take().scalars  # {"encoder/norm": …}

    What a function puts in while it is being traced is put in at each of its later runs: inside
    loops and branches, under XLA, from every replica. It goes to the storage that was current
    while it was traced, and nowhere if there was none or if it was muted.

    Attributes:
      step: The step of what is put in and taken now.
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
        # Not simply the last: runs in several threads may end in any order.
        del _current[len(_current) - 1 - _current[::-1].index(self)]

    @_as_it_stands
    def put_scalar(self, name: str, value: Any, smoothing_hint: bool = True) -> None:
        """Puts in one number.

        Args:
          name: What it is called; in a `name_scope`, after that.
          value: A single number: of Python, NumPy or TensorFlow, also while tracing.
          smoothing_hint: Whether a report is to show the mean over its interval (and the
            replicas), or else the latest value (the mean over the replicas). What is put in
            outside of a graph counts as later than what came from inside.

        Raises:
          errors.ConfigValueError: It is not a single number, or the name was put in with the
            other hint before.
        """
        if self.is_muted:
            return
        name = name_scopes.current_name_scope() + name
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
    def put_image(self, name: str, image: Any) -> None:
        """Puts in an image; a report takes the latest.

        Under several replicas it is the one of the first replica that put one in.

        Args:
          name: What it is called; in a `name_scope`, after that.
          image: `[height, width, channels]` with 1, 3 or 4 channels, or a batch of such, of which
            the first is taken. Floating point from 0 to 1, or uint8. While tracing, the size must
            be known.

        Raises:
          errors.ConfigValueError: It is something else.
        """
        if self.is_muted:
            return
        name = name_scopes.current_name_scope() + name
        if tf.inside_function():
            self._of_this_strategy().put_image(name, image)
        else:
            self._images[name] = pixels.to_pixels(name, image).numpy().astype(np.uint8)

    @_as_it_stands
    def put_histogram(self, name: str, values: Any) -> None:
        """Puts in many numbers of which the distribution is wanted; a report takes all together.

        Args:
          name: What it is called; in a `name_scope`, after that.
          values: Numbers of any type and shape. Infinite ones count as the largest there are, NaN
            is left out.
        """
        if self.is_muted:
            return
        name = name_scopes.current_name_scope() + name
        if tf.inside_function():
            self._of_this_strategy().put_histogram(name, values)
        else:
            counts = histogram.bucket_counts(values).numpy().astype(np.float64)
            self._counts[name] = self._counts.get(name, 0.0) + counts

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Takes nothing within, neither from Python nor from functions that are traced there."""
        self._num_mutes += 1
        try:
            yield
        finally:
            self._num_mutes -= 1

    @property
    def is_muted(self) -> bool:
        """Whether what is put in now is dropped."""
        return self._num_mutes > 0

    def take(self, from_graphs: bool = True) -> Events:
        """What came up since the last time; a name without anything new is absent.

        Args:
          from_graphs: Whether to take what graphs put in. It is summed over all workers, so all of
            them have to call this; one that has failed by itself would wait for the others.
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
                name: histogram.histogram_of(counts[name])
                for name in sorted(counts)
                if counts[name].any()
            },
        )

    def history(self, name: str) -> ScalarHistory:
        """What a scalar has been: single values from Python, means over intervals from graphs.

        Args:
          name: The whole name, with its name scopes.

        Raises:
          errors.UnknownNameError: Nothing of that name has come up yet.
        """
        if name not in self._histories:
            hint = suggestions.did_you_mean(name, self._histories)
            raise errors.UnknownNameError(f"No scalar `{name}` has come up yet. {hint}".rstrip())
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
                f"`{name}` was put in with smoothing_hint={before} before, and now with "
                f"{smoothing_hint}: one number can't be both. Use two names."
            )

    def _add_to_history(self, name: str, value: float, weight: float = 1) -> None:
        self._histories.setdefault(name, ScalarHistory()).add(value, self.step, weight)


class _NullStorage(EventStorage):
    """What is current outside of a run."""

    @property
    def is_muted(self) -> bool:
        return True


_current: list[EventStorage] = []
_null = _NullStorage()


def get_event_storage(required: bool = False) -> EventStorage:
    """The storage of the innermost `with storage:`, in whatever thread that is.

    Args:
      required: Whether there has to be one. If not, and there is none, what is put into the
        result is dropped, so that a model which reports numbers also works outside of a run.

    Raises:
      errors.ConfigError: There is none, and it is required.
    """
    if _current:
        return _current[-1]
    if required:
        raise errors.ConfigError(
            "There is no event storage here. A `Controller` opens one while it trains; elsewhere "
            "use `with telemetry.EventStorage():`."
        )
    return _null


@_as_it_stands
def put_scalar(name: str, value: Any, smoothing_hint: bool = True) -> None:
    """`EventStorage.put_scalar` of the current storage; without one, nothing."""
    get_event_storage().put_scalar(name, value, smoothing_hint)


@_as_it_stands
def put_image(name: str, image: Any) -> None:
    """`EventStorage.put_image` of the current storage; without one, nothing."""
    get_event_storage().put_image(name, image)


@_as_it_stands
def put_histogram(name: str, values: Any) -> None:
    """`EventStorage.put_histogram` of the current storage; without one, nothing."""
    get_event_storage().put_histogram(name, values)


class _EagerScalar:
    """The values of one interval that came up one by one."""

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
    """Which replica this is; `_ALL` in code that runs once for all."""
    if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
        return _ALL
    return int(tf.distribute.get_replica_context().replica_id_in_sync_group)


def _as_single(name: str, value: Any) -> tf.Tensor:
    tensor = tf.convert_to_tensor(value)
    if tensor.shape.is_fully_defined() and tensor.shape.num_elements() != 1:
        raise _not_a_number(name, value)
    return tf.reshape(tf.cast(tensor, tf.float32), [])


def _not_a_number(name: str, value: Any) -> errors.ConfigValueError:
    shape = getattr(value, "shape", None)
    given = type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
    return errors.ConfigValueError(
        f"`{name}` is a {given}; `put_scalar` takes a single number. `put_histogram` takes many."
    )
