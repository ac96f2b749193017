"""The position in the training data from which a resumed run continues.

Checkpoints contain no state of the data. The global step determines how many batches have been
drawn, and a source whose order depends only on the seed of the run can start at the next batch::

    with position.begin_at(batch=steps * batches_per_step, seed=config.runtime.seed) as begin:
        dataset = task.build_inputs(params)
    if not begin.is_kept:
        ...  # The source does not support positions and starts from the beginning.
"""

import contextlib
import contextvars
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.common import user_code

__all__ = [
    "ONE_TO_ONE",
    "Position",
    "begin_at",
    "current",
    "enumerate_batches",
    "keep",
    "map_batches",
    "mark_begin",
    "take",
    "unseeded",
]


@dataclasses.dataclass
class Position:
    """The number of batches that training has drawn so far.

    Attributes:
        batch: The number of global batches that have been drawn.
        seed: The seed of the run, for sources without a seed of their own.
        is_kept: Whether a source has started at this position.
    """

    batch: int
    seed: int
    is_kept: bool = False

    def batches_of(self, input_context: tf.distribute.InputContext | None = None) -> int:
        """Return how many batches of per-replica size an input pipeline has produced so far."""
        if input_context is None:
            return self.batch
        replicas_of_pipeline = (
            input_context.num_replicas_in_sync // input_context.num_input_pipelines
        )
        return self.batch * max(1, replicas_of_pipeline)


_current: contextvars.ContextVar[Position | None] = contextvars.ContextVar("position", default=None)


@contextlib.contextmanager
def begin_at(batch: int, seed: int) -> Iterator[Position]:
    """Let sources of training data that are built in this context start at a batch.

    Ops of `tf.data` without a seed of their own get the same seeds each time that the data are
    built, so a resumed run reads them in the same order.

    Args:
        batch: The number of global batches to skip.
        seed: The seed of the run.
    """
    position = Position(batch, seed)
    token = _current.set(position)
    try:
        with _seeding(seed):
            yield position
    finally:
        _current.reset(token)


@contextlib.contextmanager
def unseeded() -> Iterator[None]:
    """Let data that are built in this context draw different random numbers wherever they are read.

    Several workers of a tf.data service run the same dataset, for several trainers. With the seed
    of the run, all of them would shuffle it in the same order.
    """
    with _seeding(None):
        yield


# The global seed that TensorFlow reports if the program has not set one.
_NO_SEED = 87654321

# The maximum number of draws that `_seeding` repeats to restore the program's sequence of seeds.
# Programs draw fewer seeds than this before they build their data.
_MAX_DRAWS = 100_000


@contextlib.contextmanager
def _seeding(seed: int | None) -> Iterator[None]:
    """Seed ops without an explicit seed, and restore the program's sequence of seeds at exit.

    TensorFlow draws the seeds of such ops from its global seed, one after the other. Without a
    global seed, it draws them whenever the ops run.
    """
    if not tf.executing_eagerly():
        yield
        return
    of_program, _ = tf.compat.v1.random.get_seed(1)
    is_set = of_program != _NO_SEED
    last_draw = _draw() if is_set else None
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        tf.random.set_seed(of_program if is_set else None)
        if is_set:
            # Advance the sequence of seeds to `last_draw`, so that the program does not draw the
            # same seeds again.
            next((True for _ in range(_MAX_DRAWS) if _draw() == last_draw), None)


def _draw() -> int:
    """Draw the seed that the next op without an explicit seed would use."""
    seed: int = tf.compat.v1.random.get_seed(None)[1]
    return seed


def current() -> Position | None:
    """Return the position of the training data that is being built; None for any other data."""
    return _current.get()


def take() -> Position | None:
    """Return the current position and mark it as used by the source.

    Call this in a custom `build_inputs` whose source starts at the position::

        begin = position.take()
        dataset = records.shuffle(1000, seed=begin.seed).repeat().batch(size)
        dataset = dataset.skip(begin.batches_of(input_context))
    """
    position = _current.get()
    if position is not None:
        position.is_kept = True
    return position


def enumerate_batches(
    dataset: tf.data.Dataset, input_context: tf.distribute.InputContext | None = None
) -> tf.data.Dataset:
    """Pair each batch with its int64 number, counted from the start of training.

    Use the number as part of the seed of `tf.random.stateless_*`. An augmentation then does not
    depend on how often training was interrupted, and differs between epochs.

    Args:
        dataset: Batches of a source that supports positions. For an evaluation, numbers start at 0.
        input_context: The index of this input pipeline and the number of pipelines.
    """
    position = _current.get()
    numbered = dataset.enumerate(position.batches_of(input_context) if position else 0)
    if _is_aligned(dataset):
        mark_begin(numbered)
    return numbered


def map_batches(
    dataset: tf.data.Dataset,
    function: Callable[[tf.Tensor, Any], Any],
    input_context: tf.distribute.InputContext | None = None,
    *,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Map batches by a function that draws random numbers, the same ones after a resume.

    Args:
        dataset: Batches of a source that supports positions.
        function: Function that takes a seed for `tf.random.stateless_*`, which differs for each
            batch, and the batch.
        input_context: The index of this input pipeline and the number of pipelines.
        seed: The seed of all batches. None takes the seed of the run, or 0 outside of a run.
    """
    context = input_context or tf.distribute.InputContext()
    if seed is None:
        seed = begin.seed if (begin := _current.get()) else 0

    @user_code.not_converted
    def apply(number: tf.Tensor, batch: Any) -> Any:
        number = number * context.num_input_pipelines + context.input_pipeline_id
        batch_seed = tf.stack([tf.constant(seed, tf.int64), number])
        return user_code.converted(function)(batch_seed, batch)

    numbered = enumerate_batches(dataset, input_context)
    return numbered.map(apply, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


# Datasets whose first batch is known to be the batch at the current position.
_begun: weakref.WeakSet[tf.data.Dataset] = weakref.WeakSet()

# Dataset types that return exactly one element for each input element.
ONE_TO_ONE = frozenset(
    f"{name}Dataset"
    for name in ("AssertCardinality", "Map", "Options", "ParallelMap", "Prefetch", "Zip")
)


def mark_begin(dataset: tf.data.Dataset) -> None:
    """Record that the first batch of a dataset is the batch at the current position."""
    _begun.add(dataset)


def keep(build_inputs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `build_inputs` so that operations behind a source keep the position of the source.

    A source may start at the position, but a shuffle, a filter or a second source that is combined
    with it would start from the beginning. Such a pipeline is built for position 0, and the batches
    before the position are read and skipped.
    """

    @functools.wraps(build_inputs)
    def build(*args: Any, **kwargs: Any) -> Any:
        begin = _current.get()
        if begin is None:
            return build_inputs(*args, **kwargs)
        # Each pipeline is seeded separately, so that its seeds do not depend on how many pipelines
        # this process has built.
        with _seeding(begin.seed):
            dataset = build_inputs(*args, **kwargs)
        is_at_position = not isinstance(dataset, tf.data.Dataset) or not begin.batch
        if is_at_position or _is_aligned(dataset) is not False:
            return dataset
        with begin_at(0, begin.seed):
            dataset = build_inputs(*args, **kwargs)
        num_read = begin.batches_of(kwargs.get("input_context"))
        logging.info("Reading and skipping %d batches to reach the saved position.", num_read)
        return dataset.repeat().skip(num_read)

    return build


def _is_aligned(dataset: tf.data.Dataset) -> bool | None:
    """Return whether a dataset starts at the current position.

    This requires that all sources of the dataset start at the position, and that each operation
    after them returns one element for each element of its input.

    Returns:
        None if no source is known to start at the position.
    """
    if dataset in _begun:
        return True
    sources = [_is_aligned(source) for source in dataset._inputs()]
    if not any(source is not None for source in sources):
        return None
    name = type(dataset).__name__.strip("_")
    is_endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    return all(sources) and (name in ONE_TO_ONE or (name == "RepeatDataset" and bool(is_endless)))
