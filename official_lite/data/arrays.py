"""Batches out of arrays: what is shuffled and cut into batches are the indices of rows."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from official_lite.common import errors, user_code
from official_lite.data import position, replicas, stacking

__all__ = ["from_arrays"]

# Maps indices of any shape to the rows there, in the structure of the data.
Gather = Callable[[tf.Tensor], Any]

# Small batches are gathered together, this many or this large.
MOST_BATCHES_IN_A_GATHER = 64
MOST_BYTES_IN_A_GATHER = 2**20


def from_arrays(
    arrays: Any,
    batch_size: int,
    *,
    shuffle: bool,
    seed: int | None = None,
    repeat: bool = False,
    drop_remainder: bool = False,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Batches of rows of arrays, which are gathered whole.

    This is many times faster than `from_tensor_slices`, `shuffle` and `batch`, which handle each
    example by itself, and shuffles all rows instead of those in a buffer::

        images, labels = load()
        dataset = arrays.from_arrays(
            {"image": images, "label": labels},
            params.global_batch_size,
            shuffle=params.is_training,
            seed=params.seed,
            repeat=params.is_training,
            drop_remainder=params.drop_remainder,
            input_context=input_context,
        )

    Args:
        arrays: An array or a nest of them in tuples and dicts, all with one row for each example;
            don't change them afterwards. A memory-mapped array stays where it is, and so does an
            object that is no array but has `__len__`, and whose `__getitem__` maps an array of
            indices to the rows there (an array, or a nest): rows are read when they are needed.
        batch_size: Examples in a batch over all replicas.
        shuffle: Whether the rows come in another order in every epoch.
        seed: Fixes these orders; None draws others each time, in a training those of its own seed.
        repeat: Whether to go on without end. A batch may hold the last examples of one epoch and
            the first of the next, so that none is left out and all batches have one size. A
            training that resumes goes on with the batch that would have come: see `position`.
        drop_remainder: Whether to leave out the last examples if they don't fill a batch.
        input_context: Which of how many pipelines this is, and for how many replicas. Each pipeline
            takes every n-th row.

    Raises:
        ConfigValueError: The replicas can't share `batch_size` evenly.
        DataError: There are no rows, or not the same number in all arrays.
    """
    begin = position.take() if repeat else None
    order = _Order(
        rows=_rows_of_pipeline(_num_rows(arrays), input_context),
        batch_size=replicas.per_replica_batch_size(batch_size, input_context),
        shuffle=shuffle,
        seed=begin.seed if begin and seed is None else seed,
        repeat=repeat,
        drop_remainder=drop_remainder,
        first_batch=begin.batches_of(input_context) if begin else 0,
    )
    gather = _build_gather(arrays)

    def build_stacks(count: int) -> tf.data.Dataset:
        return order.build_stacks(count).map(gather)

    at_once = _num_batches_at_once(gather, order.batch_size)
    if at_once > 1:
        # A call costs more than to copy small rows twice.
        dataset = build_stacks(at_once).prefetch(2).unbatch()
    else:
        gather_batch = user_code.not_converted(lambda rows: gather(rows[0]))
        dataset = order.build_stacks(1).map(gather_batch).prefetch(2)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(order.num_stacks(1)))
    stacking.offer_stacks(dataset, build_stacks)
    return dataset


@dataclass(frozen=True, kw_only=True)
class _Order:
    """Which rows are in which batch."""

    rows: range
    batch_size: int
    shuffle: bool
    seed: int | None
    repeat: bool
    drop_remainder: bool
    first_batch: int = 0

    def num_stacks(self, count: int) -> int:
        if self.repeat:
            return tf.data.INFINITE_CARDINALITY
        num_full, remainder = divmod(len(self.rows), self.batch_size)
        return -(-num_full // count) + (remainder > 0 and not self.drop_remainder)

    def build_stacks(self, count: int) -> tf.data.Dataset:
        """Indices of shape (count, batch_size), fewer in the end; a short batch is alone."""
        epochs = self._build_epochs()
        if self.repeat:
            stacks = self._cut(epochs, count)
        else:
            stacks = epochs.flat_map(functools.partial(self._cut_epoch, count=count))
        return stacks.apply(tf.data.experimental.assert_cardinality(self.num_stacks(count)))

    def _build_epochs(self) -> tf.data.Dataset:
        """All rows in the order of an epoch are one element; of the first one, what is left."""
        if not self.repeat or self.seed is None:
            # Where somebody else repeats, each turn has to draw another number.
            numbers = tf.data.Dataset.random(self.seed, rerandomize_each_iteration=not self.repeat)
            epochs = numbers if self.repeat else numbers.take(1)
            return epochs.map(functools.partial(self._order_rows, 0))
        epoch, row = divmod(self.first_batch * self.batch_size, len(self.rows))
        order_rows = functools.partial(self._order_rows, self.seed)
        begun = tf.data.Dataset.from_tensors(order_rows(epoch)[row:])
        return begun.concatenate(tf.data.Dataset.range(epoch + 1, tf.int64.max).map(order_rows))

    @user_code.not_converted
    def _order_rows(self, *seed: Any) -> tf.Tensor:
        dtype = tf.int32 if self.rows.stop <= tf.int32.max else tf.int64
        rows = tf.range(self.rows.start, self.rows.stop, self.rows.step, dtype)
        if not self.shuffle:
            return rows
        seed = tf.stack([tf.cast(part, tf.int64) for part in seed])
        return tf.random.experimental.stateless_shuffle(rows, seed=seed)

    def _cut(self, epochs: tf.data.Dataset, count: int) -> tf.data.Dataset:
        stacks = epochs.rebatch(count * self.batch_size, drop_remainder=self.repeat)
        length = count if self.repeat else -1
        cut = user_code.not_converted(lambda rows: tf.reshape(rows, [length, self.batch_size]))
        return stacks.map(cut)

    @user_code.not_converted
    def _cut_epoch(self, rows: tf.Tensor, count: int) -> tf.data.Dataset:
        remainder = len(self.rows) % self.batch_size
        full, short = tf.split(rows, [len(self.rows) - remainder, remainder])
        stacks = self._cut(tf.data.Dataset.from_tensors(full), count)
        if self.drop_remainder or not remainder:
            return stacks
        return stacks.concatenate(tf.data.Dataset.from_tensors(short[tf.newaxis]))


def _rows_of_pipeline(num_rows: int, input_context: tf.distribute.InputContext | None) -> range:
    context = input_context or tf.distribute.InputContext()
    rows = range(context.input_pipeline_id, num_rows, context.num_input_pipelines)
    if not rows:
        raise errors.DataError(
            f"{num_rows} rows are none for pipeline {context.input_pipeline_id} of "
            f"{context.num_input_pipelines}."
        )
    return rows


def _num_rows(arrays: Any) -> int:
    lengths: list[int] = []
    _map_leaves(lambda leaf: lengths.append(len(leaf)), arrays)
    if len(set(lengths)) != 1:
        raise errors.DataError(f"Arrays of one dataset have the same length; got {lengths}.")
    return lengths[0]


def _build_gather(arrays: Any) -> Gather:
    gathers = _map_leaves(_build_gather_of_one, arrays)
    return user_code.not_converted(
        lambda indices: _map_leaves(lambda gather: gather(indices), gathers)
    )


def _build_gather_of_one(array: Any) -> Gather:
    is_array = hasattr(array, "__array__") or isinstance(array, list)
    if isinstance(array, np.memmap) or not is_array:
        return _build_read(array)
    # In the memory of a GPU it would have to come back for every batch.
    with tf.device("CPU"):
        tensor = tf.convert_to_tensor(array)
    return lambda indices: tf.gather(tensor, indices)


def _build_read(source: Any) -> Gather:
    """As a gather, of an object in Python."""
    row = _map_leaves(lambda part: np.asarray(part)[0], source[np.array([0])])
    parts = _leaves(row)
    dtypes = [part.dtype for part in parts]

    def read(indices: np.ndarray) -> list[np.ndarray]:
        rows = _leaves(source[indices.astype(np.int64)])
        return [np.asarray(part, dtype) for part, dtype in zip(rows, dtypes, strict=True)]

    def gather(indices: tf.Tensor) -> Any:
        rows = tf.numpy_function(read, [tf.reshape(indices, [-1])], dtypes, stateful=False)
        shaped = (
            tf.ensure_shape(
                tf.reshape(part, tf.concat([tf.shape(indices), one.shape], 0)),
                indices.shape + one.shape,
            )
            for part, one in zip(rows, parts, strict=True)
        )
        return _map_leaves(lambda _: next(shaped), row)

    return gather


def _num_batches_at_once(gather: Gather, batch_size: int) -> int:
    row = tf.nest.flatten(gather(tf.constant(0)))
    num_bytes = batch_size * sum(part.dtype.size * part.shape.num_elements() for part in row)
    return min(MOST_BATCHES_IN_A_GATHER, max(1, MOST_BYTES_IN_A_GATHER // max(1, num_bytes)))


def _leaves(nest: Any) -> list[Any]:
    leaves: list[Any] = []
    _map_leaves(leaves.append, nest)
    return leaves


def _map_leaves(fn: Callable[[Any], Any], nest: Any) -> Any:
    """As `tf.nest.map_structure`, but with a list for a leaf, as it is in `tf.data`."""
    if isinstance(nest, dict):
        return {name: _map_leaves(fn, value) for name, value in nest.items()}
    if isinstance(nest, tuple):
        values = [_map_leaves(fn, value) for value in nest]
        return type(nest)(*values) if hasattr(nest, "_fields") else tuple(values)
    return fn(nest)
