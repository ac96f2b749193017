"""The position in the training data from which a resumed run continues.

Checkpoints contain no state of the data. The global step determines how many batches have been
drawn, and a source whose order depends only on the seed of the run can start at the next batch::

    with position.begin_at(batch=steps * batches_per_step, seed=config.runtime.seed) as begin:
        dataset = task.build_inputs(params)
    if not begin.is_kept: ...   # the source does not support positions and starts from the
    beginning
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

import tensorflow as tf

__all__ = ["Position", "begin_at", "current", "enumerate_batches", "take"]


@dataclasses.dataclass
class Position:
    """The number of batches that the training has drawn so far.

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

    Args:
        batch: The number of global batches to skip.
        seed: The seed of the run.
    """
    position = Position(batch, seed)
    token = _current.set(position)
    try:
        yield position
    finally:
        _current.reset(token)


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
    """Pair each batch with its int64 number in the training.

    Use the number as part of the seed of `tf.random.stateless_*`. An augmentation then does not
    depend on how often the training was interrupted, and differs between epochs.

    Args:
        dataset: Batches of a source that supports positions. For an evaluation, numbers start at 0.
        input_context: The index of this input pipeline and the number of pipelines.
    """
    position = _current.get()
    return dataset.enumerate(position.batches_of(input_context) if position else 0)
