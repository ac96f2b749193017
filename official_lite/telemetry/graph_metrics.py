"""Values recorded inside graphs, stored in variables that the graphs update."""

import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterable
from concurrent import futures
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors
from official_lite.telemetry import record

__all__ = ["to_pixels", "GraphEvents", "GraphMetrics"]


def to_pixels(name: str, image: tf.Tensor | npt.NDArray[Any]) -> tf.Tensor:
    """Convert one image to pixel values from 0 to 255.

    Args:
      name: Name of the image in error messages.
      image: `[height, width, channels]` with 1, 3 or 4 channels, or a batch of such images, of
        which the first is used. Floating point from 0 to 1 (values outside are clipped, NaN becomes
        black), or uint8.

    Returns:
      `[height, width, channels]`, float32, integer values.

    Raises:
      errors.ConfigValueError: The image has another shape or type, or its size is unknown in a
        graph.
    """
    image = tf.convert_to_tensor(image)
    if image.shape.rank == 4:
        image = image[0]
    _check(name, image)
    if image.dtype == tf.uint8:
        return tf.cast(image, tf.float32)
    image = tf.cast(image, tf.float32)
    image = tf.where(tf.math.is_nan(image), tf.zeros_like(image), image)
    return tf.round(255.0 * tf.clip_by_value(image, 0.0, 1.0))


def _check(name: str, image: tf.Tensor) -> None:
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
            f"The image `{name}` is of type {image.dtype.name}; expected floating point from 0 to "
            "1, or uint8."
        )


Array: TypeAlias = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphEvents:
    """The values recorded inside graphs during one interval; names without values are absent.

    Attributes:
      scalars: By name, the sum over steps and replicas and the number of summed values.
      images: By name, `[height, width, channels]`, uint8.
      histograms: By name, counts of the fixed buckets.
    """

    scalars: dict[str, tuple[float, float]]
    images: dict[str, Array]
    histograms: dict[str, Array]


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
        # Each size of an image needs its own pixel variable. `_last_sizes` holds, by name, the
        # 1-based position in `_pixels` of the size recorded last; 0 means that there is no image.
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
        counts = record.bucket_counts(values)
        variable = self._find(self._histograms, name, lambda: self._create([record.NUM_BUCKETS]))
        self._part_here(variable).assign_add(counts)

    def put_image(self, name: str, image: tf.Tensor | npt.NDArray[Any]) -> None:
        """Replace the previous image."""
        image = to_pixels(name, image)
        key = (name, tuple(image.shape))
        last_size = self._find(self._last_sizes, name, lambda: self._create([1], is_sum=False))
        kept = self._find(self._pixels, key, lambda: self._create(image.shape, is_sum=False))
        self._part_here(last_size).assign([1.0 + list(self._pixels).index(key)])
        self._part_here(kept).assign(image)

    def take(self) -> GraphEvents:
        """Return everything recorded since the last `take`; all workers must call it together."""
        scalars, counts, arrived = self._take_sums()
        images = {name: image for name in arrived if (image := self._take_image(name)) is not None}
        return GraphEvents(scalars=scalars, images=images, histograms=counts)

    def _find(self, variables: dict[Any, Any], key: Hashable, create: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in variables:
                variables[key] = create()
                self._read_and_reset = None
            return variables[key]

    def _create(self, shape: Iterable[int], *, is_sum: bool = True) -> Any:
        # Virtual replicas, which share a variable, sum it or take that of the first one.
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

        # A graph is being traced here, perhaps on a replica. `tf.init_scope` leaves the graph but
        # not the replica, and the strategy's scope can't be entered on a replica. A new thread is
        # in neither.
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
        """Return everything summed over replicas: scalars, histograms, and names of new images."""
        if self._read_and_reset is None:
            self._read_and_reset = self._build_read_and_reset()
        sums = self._read_and_reset().numpy()
        scalars, sums = np.split(sums, [2 * len(self._scalars)])
        counts, arrived = np.split(sums, [record.NUM_BUCKETS * len(self._histograms)])
        totals = zip(sorted(self._scalars), scalars.reshape([-1, 2]).tolist(), strict=True)
        counts = counts.reshape([-1, record.NUM_BUCKETS])
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
        # Everything is concatenated into one vector, for a single reduction and a single copy from
        # the device. Sorting by name gives the same order on all workers.
        counted = [
            *(self._scalars[name] for name in sorted(self._scalars)),
            *(self._histograms[name] for name in sorted(self._histograms)),
        ]
        # Their sum only says whether there is an image; `_take_image` then reads each replica's
        # value.
        last_sizes = [self._last_sizes[name] for name in sorted(self._last_sizes)]

        def on_replica() -> tf.Tensor:
            values = tf.concat([v.read_value() for v in (*counted, *last_sizes)], axis=0)
            for variable in counted:
                variable.assign(tf.zeros_like(variable))
            # So many copies of a number have exactly this number as their mean.
            return tf.cast(values, tf.float64)

        @tf.function(autograph=False)
        def read_and_reset() -> tf.Tensor:
            per_replica = self._strategy.run(on_replica)
            return self._strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

        return read_and_reset

    def _take_image(self, name: str) -> Array | None:
        """Return the image of the first replica of this worker that has one."""
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
