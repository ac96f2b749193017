"""Input pipelines for arrays, which shuffle and batch row indices instead of rows."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, nests, user_code
from official_lite.data import halves, length, position, replicas, stacking

__all__ = ["from_arrays"]

# A function that maps row indices of any shape to the corresponding rows, nested like the data.
Gather = Callable[[tf.Tensor], Any]


class _Rows(Protocol):
    """Rows that are read by their indices, such as a memory map or a user-defined object."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: npt.NDArray[np.int64]) -> nests.Nest: ...


# Limits on the small batches that a single gather call combines.
_MAX_BATCHES_IN_A_GATHER = 64
_MAX_BYTES_IN_A_GATHER = 2**20

# A pipeline selects its share of the rows of several global batches in one call, so that each call
# handles at least this number of rows.
_ROWS_SHARED_AT_ONCE = 2**12


def from_arrays(
    arrays: nests.Nest,
    batch_size: int,
    *,
    shuffle: bool,
    seed: int | None = None,
    repeat: bool = False,
    drop_remainder: bool = False,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build a dataset of batches from arrays, gathering all rows of a batch at once.

    This is many times faster than `from_tensor_slices`, `shuffle` and `batch`, which handle each
    example separately. It also shuffles all rows rather than only the rows in a buffer. In
    `Task.build_inputs`, `core.input_reader.from_arrays` takes most arguments from the data config.

    Args:
        arrays: An array, or a nest of arrays in tuples and dicts, all with one row per example. Do
            not modify the arrays afterwards. Rows of a memory-mapped array are read only when they
            are needed. The same holds for an object that is not an array but has `__len__` and a
            `__getitem__` that maps an array of indices to those rows (an array or a nest of
            arrays).
        batch_size: Global batch size, the number of examples in a batch across all replicas.
        shuffle: Whether to read the rows in a different order in each epoch.
        seed: Seed of these orders. With None, a training run uses the seed of the run; any other
            reading draws new orders each time.
        repeat: Whether to repeat the data indefinitely. A batch may then hold the last examples of
            one epoch and the first of the next, so every example is used and all batches have the
            same size. A training run that resumes continues with the next batch; see `position`.
        drop_remainder: Whether to drop the last examples if they do not fill a batch.
        input_context: The index of this input pipeline, the number of pipelines and the number of
            replicas. If the data repeats in a known order, each pipeline takes its replicas' share
            of every batch, so the batches do not depend on the number of pipelines. Otherwise each
            of the n pipelines takes every n-th row.

    Raises:
        ConfigValueError: `batch_size` is not divisible by the number of replicas.
        DataError: There are no rows; the arrays differ in length; data that repeats has fewer rows
            than there are pipelines; with `drop_remainder`, the rows do not fill one batch; or an
            array can't be converted to a tensor.
    """
    num_rows = _num_rows(arrays)
    _require_rows(num_rows, input_context, repeat)
    per_replica = replicas.per_replica_batch_size(batch_size, input_context)
    _check_batch_size(num_rows, batch_size, is_left_out=drop_remainder and not repeat)
    if drop_remainder and not repeat and not shuffle:
        replicas.warn_of_dropped_examples(batch_size, num_rows)
    if input_context is not None and num_rows <= input_context.input_pipeline_id:
        # Return an empty dataset: this pipeline has no rows, but must take part in the evaluation,
        # because other pipelines have rows.
        first = tf.distribute.InputContext(num_replicas_in_sync=input_context.num_replicas_in_sync)
        return from_arrays(arrays, batch_size, shuffle=False, input_context=first).take(0)
    begin = position.take() if repeat else None
    seed = begin.seed if begin and seed is None else seed
    shares_batches = repeat and seed is not None
    half, whole = halves.split(input_context)
    rows = range(num_rows)[half]
    context = whole or tf.distribute.InputContext()
    num_own = begin.batches_of(input_context) if begin else 0
    order = _Order(
        rows=rows if shares_batches else _rows_of_pipeline(rows, context),
        batch_size=per_replica,
        shuffle=shuffle,
        seed=seed,
        repeat=repeat,
        drop_remainder=drop_remainder,
        first_row=num_own * per_replica * context.num_input_pipelines,
        share=_share_of_pipeline(per_replica, context) if shares_batches else None,
    )
    gather = _build_gather(arrays)
    at_once = _num_batches_at_once(gather, order.batch_size)
    has_replicas = input_context is not None and input_context.num_replicas_in_sync > 1
    if has_replicas and not repeat and not drop_remainder:
        gather = _of_any_size(gather)

    def build_stacks(count: int) -> tf.data.Dataset:
        return order.build_stacks(count).map(gather)

    if at_once > 1:
        # A separate gather call per small batch would cost more than the second copy that `unbatch`
        # makes.
        dataset = build_stacks(at_once).prefetch(2).unbatch()
    else:
        gather_batch = user_code.not_converted(lambda rows: gather(rows[0]))
        dataset = order.build_stacks(1).map(gather_batch).prefetch(2)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(order.num_stacks(1)))
    stacking.offer_stacks(dataset, build_stacks)
    if repeat:
        length.set_epoch_length(dataset, Fraction(num_rows, batch_size))
    if begin is not None:
        position.mark_begin(dataset)
    return dataset


@dataclass(frozen=True, kw_only=True)
class _Order:
    """The assignment of rows to the batches of one input pipeline."""

    rows: range
    batch_size: int
    shuffle: bool
    seed: int | None
    repeat: bool
    drop_remainder: bool
    first_row: int = 0
    # The number of rows that all pipelines together take at a time, and this pipeline's range of
    # these rows. None means that this pipeline takes all rows.
    share: tuple[int, range] | None = None

    def num_stacks(self, count: int) -> int:
        if self.repeat:
            return tf.data.INFINITE_CARDINALITY
        num_full, remainder = divmod(len(self.rows), self.batch_size)
        return -(-num_full // count) + (remainder > 0 and not self.drop_remainder)

    def build_stacks(self, count: int) -> tf.data.Dataset:
        """Build a dataset of index stacks of shape (count, batch_size).

        The last stack may hold fewer than `count` batches. A batch with fewer than `batch_size`
        rows is in a stack of its own.
        """
        epochs = self._build_epochs()
        if self.repeat:
            stacks = self._cut(self._take_share(epochs), count)
        else:
            stacks = epochs.flat_map(functools.partial(self._cut_epoch, count=count))
        return stacks.apply(tf.data.experimental.assert_cardinality(self.num_stacks(count)))

    def _build_epochs(self) -> tf.data.Dataset:
        """Build a dataset with one element per epoch: all rows in the order of that epoch.

        In a resumed run, the first element holds only the rows of its epoch that have not been read
        yet.
        """
        if not self.repeat or self.seed is None:
            # If the caller repeats the dataset, each repetition must shuffle with a different seed.
            numbers = tf.data.Dataset.random(self.seed, rerandomize_each_iteration=not self.repeat)
            epochs = numbers if self.repeat else numbers.take(1)
            return epochs.map(functools.partial(self._order_rows, 0))
        epoch, row = divmod(self.first_row, len(self.rows))
        # The first row is the index of the half, if the data are halved. Draw different orders for
        # the halves, so that their batches are independent.
        order_rows = functools.partial(self._order_rows, self.seed ^ self.rows.start)
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

    def _take_share(self, epochs: tf.data.Dataset) -> tf.data.Dataset:
        if self.share is None:
            return epochs
        size, share = self.share

        @user_code.not_converted
        def take(rows: tf.Tensor) -> tf.Tensor:
            return tf.reshape(tf.reshape(rows, [-1, size])[:, share.start : share.stop], [-1])

        # Selecting the share of several global batches in one call is faster than one call per
        # batch.
        at_once = -(-_ROWS_SHARED_AT_ONCE // size)
        return epochs.rebatch(at_once * size, drop_remainder=True).map(take)

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


def _rows_of_pipeline(rows: range, context: tf.distribute.InputContext) -> range:
    return rows[context.input_pipeline_id :: context.num_input_pipelines]


def _share_of_pipeline(
    per_replica: int, context: tf.distribute.InputContext
) -> tuple[int, range] | None:
    pipelines, index = context.num_input_pipelines, context.input_pipeline_id
    if pipelines == 1:
        return None
    # With parameter servers, the quotient may be 0: each worker is a separate replica and builds
    # its own batches.
    size = per_replica * max(1, context.num_replicas_in_sync // pipelines)
    return pipelines * size, range(index * size, (index + 1) * size)


def _require_rows(
    num_rows: int, input_context: tf.distribute.InputContext | None, repeat: bool
) -> None:
    """Raise a `DataError` if there are too few rows.

    All pipelines raise the error, even those that have rows: if only one of them failed, the others
    would wait for it.
    """
    wanted = input_context.num_input_pipelines if input_context and repeat else 1
    if num_rows < wanted:
        raise errors.DataError(
            (
                f"Each of the {wanted} input pipelines needs at least one row, but there are only "
                f"{num_rows}. Use more data or fewer input pipelines."
            )
            if wanted > 1
            else "The dataset is empty: its arrays have no rows; expected at least one row."
        )


def _check_batch_size(num_rows: int, batch_size: int, *, is_left_out: bool) -> None:
    if num_rows >= batch_size:
        return
    if is_left_out:
        raise errors.DataError(
            f"A batch of {batch_size} examples can't be filled from {num_rows} rows, and "
            "`drop_remainder` drops partial batches. Lower `global_batch_size`, or set "
            "`drop_remainder` to false."
        )
    if position.current() is not None:
        replicas.warn_of_large_batch(batch_size, num_rows)


def _num_rows(arrays: nests.Nest) -> int:
    lengths: list[int] = []
    _map_leaves(lambda leaf: lengths.append(len(leaf)), arrays)
    if len(set(lengths)) != 1:
        raise errors.DataError(f"All arrays of a dataset must have the same length; got {lengths}.")
    return lengths[0]


def _build_gather(arrays: nests.Nest) -> Gather:
    gathers = _map_leaves(_build_gather_of_one, arrays)
    return user_code.not_converted(
        lambda indices: _map_leaves(lambda gather: gather(indices), gathers)
    )


def _of_any_size(gather: Gather) -> Gather:
    """Wrap `gather` so that the batch size of its results is statically unknown.

    If the batch size is static, tf.distribute drops the last batches as soon as a replica has no
    batch left.
    """

    def relax(indices: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
        axis = indices.shape.rank - 1
        shape = [*part.shape[:axis], None, *part.shape[axis + 1 :]]
        return tf.compat.v1.placeholder_with_default(part, shape)

    return user_code.not_converted(
        lambda indices: _map_leaves(lambda part: relax(indices, part), gather(indices))
    )


def _build_gather_of_one(array: nests.Nest) -> Gather:
    is_array = hasattr(array, "__array__") or isinstance(array, list)
    if isinstance(array, np.memmap) or not is_array:
        return _build_read(array)
    # Keep the tensor on the CPU, where tf.data runs: a tensor in GPU memory would be copied back
    # for every batch.
    try:
        with tf.device("CPU"):
            tensor = tf.convert_to_tensor(array)
    except ValueError as error:
        row = array[0] if isinstance(array, list) else [*np.ravel(np.asarray(array)[0])]
        kinds = sorted({type(value).__name__ for value in tf.nest.flatten(row)})
        raise errors.DataError(
            f"An array can't be converted to a tensor: {str(error).rstrip('.')}. The values of its "
            f"first row have the types {', '.join(kinds)}. Give all rows the same shape and all "
            "values one type, for example by replacing text with numbers."
        ) from error
    return lambda indices: tf.gather(tensor, indices)


def _build_read(source: _Rows) -> Gather:
    """Build a gather function that reads rows by the `__getitem__` of a Python object."""
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
    row = nests.tensors_in(gather(tf.constant(0)))
    num_bytes = batch_size * sum(part.dtype.size * part.shape.num_elements() for part in row)
    return min(_MAX_BATCHES_IN_A_GATHER, max(1, _MAX_BYTES_IN_A_GATHER // max(1, num_bytes)))


def _leaves(nest: nests.Nest) -> list[Any]:
    leaves: list[Any] = []
    _map_leaves(leaves.append, nest)
    return leaves


def _map_leaves(fn: Callable[[Any], Any], nest: nests.Nest) -> Any:
    """Map `fn` over a nest. As in `tf.data`, lists are leaves. None stays None."""
    if nest is None:
        return None
    if isinstance(nest, dict):
        return {name: _map_leaves(fn, value) for name, value in nest.items()}
    if isinstance(nest, tuple):
        values = [_map_leaves(fn, value) for value in nest]
        return type(nest)(*values) if hasattr(nest, "_fields") else tuple(values)
    return fn(nest)
