"""Storage that collects values recorded anywhere in a run, in graphs too, until a report."""

import collections
import contextlib
import dataclasses
import threading
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, nested_dict, suggestions
from official_lite.telemetry.writer import (
    NUM_BUCKETS,
    Histogram,
    Values,
    as_number,
    bucket_counts,
    histogram_of,
)


class _Entry(NamedTuple):
    """A value with its step, and the weighted sum and total weight of all values up to it."""

    value: float
    step: int
    total: float
    weight: float


class ScalarHistory:
    """The values of one scalar, with statistics of the most recent ones.

    Args:
        max_length: Maximum number of values to keep. `global_mean` includes the others, too.
    """

    def __init__(self, max_length: int = 4096) -> None:
        self._entries: collections.deque[_Entry] = collections.deque(maxlen=max_length)

    def add(self, value: float, step: int, weight: float = 1) -> None:
        """Add a value recorded at `step`, with `weight` as its weight in `global_mean`."""
        last = self._entries[-1] if self._entries else _Entry(0.0, 0, 0.0, 0.0)
        total = last.total + value * weight
        self._entries.append(_Entry(value, step, total, last.weight + weight))

    def rewind(self, step: int) -> None:
        """Remove the values recorded after `step`, because training restarts from there.

        If no value is left, `global_mean` also forgets the values that were no longer kept.
        """
        while self._entries and self._entries[-1].step > step:
            self._entries.pop()

    def latest(self) -> float:
        """Return the latest value."""
        return self._entries[-1].value

    def median(self, window: int = 20) -> float:
        """Return the median of the last `window` values."""
        return float(np.median(self._last(window)))

    def mean(self, window: int = 20) -> float:
        """Return the mean of the last `window` values."""
        return float(np.mean(self._last(window)))

    def global_mean(self) -> float:
        """Return the mean of all values added and not rewound, including those no longer kept.

        Values recorded inside a graph during one interval are stored as one value, their mean,
        which is weighted by the number of values recorded.
        """
        return self._entries[-1].total / self._entries[-1].weight

    def values(self) -> list[tuple[float, int]]:
        """Return the kept values with their steps, oldest first."""
        return [(entry.value, entry.step) for entry in self._entries]

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


def to_pixels(name: str, image: tf.Tensor | npt.NDArray[Any]) -> tf.Tensor:
    """Convert one image to pixel values from 0 to 255.

    Args:
        name: Name of the image in error messages.
        image: `[height, width, channels]` with 1, 3 or 4 channels, or a batch of such images, of
            which the first is used. Floating point from 0 to 1 (values outside are clipped, NaN
            becomes black), or uint8.

    Returns:
        `[height, width, channels]`, float32, integer values.

    Raises:
        errors.ConfigValueError: The image has another shape or type, or its size is unknown in a
            graph.
    """
    image = tf.convert_to_tensor(image)
    if image.shape.rank == 4:
        image = image[0]
    _check_image(name, image)
    if image.dtype == tf.uint8:
        return tf.cast(image, tf.float32)
    image = tf.cast(image, tf.float32)
    image = tf.where(tf.math.is_nan(image), tf.zeros_like(image), image)
    return tf.round(255.0 * tf.clip_by_value(image, 0.0, 1.0))


def _check_image(name: str, image: tf.Tensor) -> None:
    if image.shape.rank != 3 or image.shape[2] not in (1, 3, 4, None):
        raise errors.ConfigValueError(
            f"The image `{name}` has the shape {image.shape}; it must be [height, width, channels] "
            "with 1, 3 or 4 channels, or a batch of such images."
        )
    if not image.shape.is_fully_defined():
        raise errors.ConfigValueError(
            f"The image `{name}` has the shape {image.shape} in the graph, where its size must be "
            "known. Use `tf.ensure_shape`, `tf.image.resize` or a crop."
        )
    if not (image.dtype.is_floating or image.dtype == tf.uint8):
        raise errors.ConfigValueError(
            f"The image `{name}` is of type {image.dtype.name}; expected floating-point values "
            "from 0 to 1, or uint8."
        )


Array: TypeAlias = npt.NDArray[Any]


class GraphMetrics:
    """Variables that accumulate recorded values, one per name, with a copy on every replica.

    The `put_*` methods may be traced on a replica, across replicas, and inside loops, branches and
    functions compiled by XLA. The first trace of a name creates its variable; later traces and
    other replicas reuse it.

    Args:
        strategy: The distribution strategy under which the graphs run.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._lock = threading.Lock()
        self._scalars: dict[str, Any] = {}
        self._histograms: dict[str, Any] = {}
        # `_pixels` holds one variable for each name and image size. `_last_sizes` maps a name to a
        # variable that holds the 1-based position in `_pixels` of the latest image, or 0 if there
        # is no image.
        self._last_sizes: dict[str, Any] = {}
        self._pixels: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._read_and_reset: Callable[[], tf.Tensor] | None = None

    def put_scalar(self, name: str, value: tf.Tensor, *, keeps_latest: bool) -> None:
        """Add a float32 scalar to the sum and the count, or replace both if `keeps_latest`."""
        update = tf.stack([value, 1.0])
        variable = self._find(
            self._scalars, name, lambda: self._create([2], is_sum=not keeps_latest)
        )
        if keeps_latest:
            self._replace(variable, update)
        else:
            self._part_here(variable).assign_add(update)

    def put_histogram(self, name: str, values: tf.Tensor | npt.NDArray[Any]) -> None:
        """Add the bucket counts of `values`."""
        counts = bucket_counts(values)
        variable = self._find(self._histograms, name, lambda: self._create([NUM_BUCKETS]))
        self._part_here(variable).assign_add(counts)

    def put_image(self, name: str, image: tf.Tensor | npt.NDArray[Any]) -> None:
        """Replace the previous image."""
        image = to_pixels(name, image)
        key = (name, tuple(image.shape))
        last_size = self._find(self._last_sizes, name, lambda: self._create([1], is_sum=False))
        kept = self._find(self._pixels, key, lambda: self._create(image.shape, is_sum=False))
        self._part_here(last_size).assign([1.0 + list(self._pixels).index(key)])
        self._part_here(kept).assign(image)

    def take(self) -> tuple[dict[str, tuple[float, float]], dict[str, Array], dict[str, Array]]:
        """Return everything recorded since the last `take`; all workers must call it together.

        Returns:
            The sum and the number of values of each scalar, the images, and the bucket counts of
            each histogram, without names that have no values.
        """
        scalars, counts, arrived = self._take_sums()
        images = {name: image for name in arrived if (image := self._take_image(name)) is not None}
        return scalars, images, counts

    def _find(self, variables: dict[Any, Any], key: Hashable, create: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in variables:
                variables[key] = create()
                self._read_and_reset = None
            return variables[key]

    def _create(self, shape: Iterable[int], *, is_sum: bool = True) -> Any:
        # Virtual replicas share a variable, which receives the sum of their values or the value of
        # the first replica.
        aggregations = tf.VariableAggregation
        aggregation = aggregations.SUM if is_sum else aggregations.ONLY_FIRST_REPLICA

        def create() -> Any:
            with self._strategy.scope():
                return tf.Variable(
                    tf.zeros(list(shape)),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=aggregation,
                )

        # A graph is being traced here, perhaps in a replica context, in which the strategy's scope
        # can't be entered. `tf.init_scope` leaves the graph but not the replica context. Use a new
        # thread, which is in neither a graph nor a replica context.
        with futures.ThreadPoolExecutor(max_workers=1) as outside:
            return outside.submit(create).result()

    def _part_here(self, variable: tf.Variable) -> tf.Variable:
        """Return this replica's copy of a variable; the first copy in cross-replica context."""
        if not tf.distribute.in_cross_replica_context():
            return variable
        return self._strategy.experimental_local_results(variable)[0]

    def _replace(self, variable: tf.Variable, value: tf.Tensor) -> None:
        self._part_here(variable).assign(value)
        if tf.distribute.in_cross_replica_context():
            for part in self._strategy.experimental_local_results(variable)[1:]:
                part.assign(tf.zeros_like(value))

    def _take_sums(
        self,
    ) -> tuple[dict[str, tuple[float, float]], dict[str, Array], list[str]]:
        """Return scalars and histograms summed over replicas, and the names of new images.

        The scalars and histograms are reset.
        """
        if self._read_and_reset is None:
            self._read_and_reset = self._build_read_and_reset()
        sums = self._read_and_reset().numpy()
        scalars, sums = np.split(sums, [2 * len(self._scalars)])
        counts, arrived = np.split(sums, [NUM_BUCKETS * len(self._histograms)])
        totals = zip(sorted(self._scalars), scalars.reshape([-1, 2]).tolist(), strict=True)
        counts = counts.reshape([-1, NUM_BUCKETS])
        return (
            {name: (total, count) for name, (total, count) in totals if count},
            {
                name: array
                for name, array in zip(sorted(self._histograms), counts, strict=True)
                if array.any()
            },
            [name for name, came in zip(sorted(self._last_sizes), arrived, strict=True) if came],
        )

    def _build_read_and_reset(self) -> Callable[[], tf.Tensor]:
        # Concatenate all variables into one vector, for a single reduction and a single copy from
        # the device. Sorting by name gives the same order on all workers.
        counted = [
            *(self._scalars[name] for name in sorted(self._scalars)),
            *(self._histograms[name] for name in sorted(self._histograms)),
        ]
        # The sum over replicas only shows whether there is an image. `_take_image` then reads the
        # value of each replica.
        last_sizes = [self._last_sizes[name] for name in sorted(self._last_sizes)]

        def on_replica() -> tf.Tensor:
            values = tf.concat([v.read_value() for v in (*counted, *last_sizes)], axis=0)
            for variable in counted:
                variable.assign(tf.zeros_like(variable))
            # In float64, the mean of equal float32 numbers is exact.
            return tf.cast(values, tf.float64)

        @tf.function(autograph=False)
        def read_and_reset() -> tf.Tensor:
            per_replica = self._strategy.run(on_replica)
            return self._strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

        return read_and_reset

    def _take_image(self, name: str) -> Array | None:
        """Return the image of the first replica on this worker that has one; reset all replicas."""
        parts = self._strategy.experimental_local_results(self._last_sizes[name])
        sizes = [int(part.numpy().item()) for part in parts]
        for part in parts:
            part.assign([0.0])
        for replica, size in enumerate(sizes):
            if size:
                kept = list(self._pixels.values())[size - 1]
                pixels_here = self._strategy.experimental_local_results(kept)[replica]
                image: Array = pixels_here.numpy().astype(np.uint8)
                return image
        return None


_Fn = TypeVar("_Fn")


def _as_it_stands(function: _Fn) -> _Fn:
    """Exclude a function from AutoGraph, because its Python code decides what to trace."""
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
        self._of_graphs: dict[tf.distribute.Strategy, GraphMetrics] = {}
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
        # Remove this storage's latest entry. It need not be the last entry of the list, because
        # runs in several threads may end in any order.
        del _current[len(_current) - 1 - _current[::-1].index(self)]

    @_as_it_stands
    def put_scalar(self, name: str, value: tf.Tensor | float, smoothing_hint: bool = True) -> None:
        """Record one number.

        Args:
            name: Name of the scalar. Inside a `name_scope`, the scope is prepended.
            value: A single Python, NumPy or TensorFlow number, which may be a symbolic tensor.
            smoothing_hint: If True, a report shows the mean over its interval and over the
                replicas. If False, it shows the latest value, averaged over the replicas. A value
                recorded outside of a graph counts as later than values recorded inside a graph.

        Raises:
            errors.ConfigValueError: The value is not a single number, or the name was recorded
                before with the other hint.
        """
        if self.is_muted:
            return
        name = current_name_scope() + name
        self._check_hint(name, smoothing_hint)
        if tf.inside_function():
            tensor = _as_single(name, value)
            self._of_this_strategy().put_scalar(name, tensor, keeps_latest=not smoothing_hint)
            return
        number = as_number(value)
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
            image: `[height, width, channels]` with 1, 3 or 4 channels, or a batch of such images,
                of which the first is used. Floating point from 0 to 1, or uint8. During tracing,
                the size must be known.

        Raises:
            errors.ConfigValueError: The image has another shape or type.
        """
        if self.is_muted:
            return
        name = current_name_scope() + name
        if tf.inside_function():
            self._of_this_strategy().put_image(name, image)
        else:
            self._images[name] = to_pixels(name, image).numpy().astype(np.uint8)

    @_as_it_stands
    def put_histogram(self, name: str, values: tf.Tensor | npt.NDArray[Any]) -> None:
        """Record values for a histogram; a report takes all values of its interval.

        Args:
            name: Name of the histogram. Inside a `name_scope`, the scope is prepended.
            values: Numbers of any type and shape. Infinite values count as the largest finite
                value; NaN is ignored.
        """
        if self.is_muted:
            return
        name = current_name_scope() + name
        if tf.inside_function():
            self._of_this_strategy().put_histogram(name, values)
        else:
            counts = bucket_counts(values).numpy().astype(np.float64)
            self._counts[name] = self._counts.get(name, 0.0) + counts

    def record_report(self, values: Values) -> None:
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
                workers, so all workers must call this method together; a single worker that has
                failed would wait for the others.
        """
        scalars, images, counts = self._scalars, self._images, self._counts
        self._scalars, self._images, self._counts = {}, {}, {}
        for metrics in self._of_graphs.values() if from_graphs else ():
            new_scalars, new_images, new_counts = metrics.take()
            for name, (total, number) in new_scalars.items():
                self._add_to_history(name, total / number, number)
                scalars.setdefault(name, _EagerScalar()).add_sum(total, number)
            for name, found in new_counts.items():
                counts[name] = counts.get(name, 0.0) + found
            images = {**new_images, **images}
        return Events(
            scalars={name: scalars[name].result(self._hints[name]) for name in sorted(scalars)},
            images={name: images[name] for name in sorted(images)},
            histograms={
                name: histogram_of(counts[name]) for name in sorted(counts) if counts[name].any()
            },
        )

    def discard(self) -> None:
        """Drop what was recorded since the last `take`; graph values do not enter the histories.

        As for `take`, all workers must call this method together.
        """
        self._scalars, self._images, self._counts = {}, {}, {}
        for metrics in self._of_graphs.values():
            metrics.take()

    def rewind(self, step: int) -> None:
        """Remove the values recorded after `step` from the histories; see `Writer.rewind`."""
        for history in self._histories.values():
            history.rewind(step)
        self._histories = {name: one for name, one in self._histories.items() if one.values()}

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

    def _of_this_strategy(self) -> GraphMetrics:
        strategy = tf.distribute.get_strategy()
        if strategy not in self._of_graphs:
            self._of_graphs[strategy] = GraphMetrics(strategy)
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
    """The storage that is current outside of a run. It discards all values."""

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
    """An accumulator for the values of one scalar in one interval.

    `add` adds a value that is recorded eagerly, and `add_sum` the sum of several values, such as
    those recorded in graphs.
    """

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
