"""Where the training data begin: a run that resumes goes on with the batch that would have come.

Nothing of the data is in a checkpoint. The step says how many batches have been drawn, and a source
whose order depends on nothing but the seed of the run can begin with the next one::

    with position.begin_at(batch=steps * batches_per_step, seed=config.runtime.seed) as begin:
        dataset = task.build_inputs(params)
    if not begin.is_kept: ...   # the source knows nothing of it, and has begun anew
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

import tensorflow as tf

__all__ = ["Position", "begin_at", "current", "enumerate_batches", "take"]


@dataclasses.dataclass
class Position:
    """How far the training has come.

    Attributes:
        batch: Global batches that have been drawn.
        seed: That of the run, for sources without a seed of their own.
        is_kept: Whether a source has begun there.
    """

    batch: int
    seed: int
    is_kept: bool = False

    def batches_of(self, input_context: tf.distribute.InputContext | None = None) -> int:
        """The batches of one replica's size that an input pipeline has given by then."""
        if input_context is None:
            return self.batch
        replicas_of_pipeline = (
            input_context.num_replicas_in_sync // input_context.num_input_pipelines
        )
        return self.batch * max(1, replicas_of_pipeline)


_current: contextvars.ContextVar[Position | None] = contextvars.ContextVar("position", default=None)


@contextlib.contextmanager
def begin_at(batch: int, seed: int) -> Iterator[Position]:
    """Within it, sources of training data begin with this batch.

    Args:
        batch: Global batches to leave out.
        seed: That of the run.
    """
    position = Position(batch, seed)
    token = _current.set(position)
    try:
        yield position
    finally:
        _current.reset(token)


def current() -> Position | None:
    """The position of the training whose data are being built; None for any other data."""
    return _current.get()


def take() -> Position | None:
    """The same, for a source that begins there: in a `build_inputs` of one's own.

    ::

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
    """Pairs of a batch's number in the training, int64, and the batch.

    With the number as a part of the seed of `tf.random.stateless_*`, an augmentation is the same
    however often the training was interrupted, and another one in every epoch.

    Args:
        dataset: Batches of a source that keeps the position; evaluation counts from 0.
        input_context: Which pipeline this is.
    """
    position = _current.get()
    return dataset.enumerate(position.batches_of(input_context) if position else 0)
