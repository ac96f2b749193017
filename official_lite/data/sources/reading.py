"""Reading of a source of rows into a dataset of batches, without Python code per row.

The order of the rows in each epoch is a function of a seed. The chunks of an epoch are shuffled and
divided into windows of consecutive chunks. The rows of a window are shuffled among themselves. A
window can therefore be read without those before it, which is how a resumed run starts at any row.
"""

import dataclasses
import functools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, user_code
from official_lite.data import halves, length
from official_lite.data.sources.registry import Columns, Source

__all__ = ["EpochOrder", "read_batches", "select"]

# The number of windows in progress: while one is converted, the next is read.
_WINDOWS_AT_ONCE = 2


@dataclasses.dataclass(frozen=True)
class _Window:
    """A part of an epoch that is read in a single call.

    Attributes:
        chunks: The numbers of the chunks in the window, in reading order.
        rows: The indices of the rows that a pipeline takes from the concatenated chunks, in reading
            order. None means all rows in their original order.
        num_rows: The number of rows that the pipeline takes.
    """

    chunks: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64] | None
    num_rows: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EpochOrder:
    """The rows of one input pipeline in each epoch.

    If there are at least as many chunks as pipelines, each pipeline reads its own chunks, which
    shuffling changes from epoch to epoch. Otherwise each of n pipelines reads all chunks and takes
    every n-th row.

    Attributes:
        chunk_rows: The number of rows of each chunk, shape (chunks,).
        shuffles_chunks: Whether chunks are shuffled.
        shuffled_rows: The minimum number of rows in a window. The rows of each window are shuffled;
            0 keeps their order.
        seed: The seed, the same for all pipelines.
        num_pipelines: The number of pipelines that share the rows.
        pipeline: The index of this pipeline.
    """

    chunk_rows: npt.NDArray[np.int64]
    shuffles_chunks: bool = False
    shuffled_rows: int = 0
    seed: int = 0
    num_pipelines: int = 1
    pipeline: int = 0

    @property
    def divides_chunks(self) -> bool:
        """Whether each pipeline reads its own chunks."""
        return len(self.chunk_rows) >= self.num_pipelines

    def num_windows(self, epoch: int) -> int:
        """Return the number of windows of an epoch."""
        return len(self._plan(epoch)[1]) - 1

    def window(self, epoch: int, index: int) -> _Window:
        """Return a window of an epoch."""
        chunks, bounds, ends = self._plan(epoch)
        chunks = chunks[bounds[index] : bounds[index + 1]]
        first_row, end_row = ends[index], ends[index + 1]
        count = int(end_row - first_row)
        rows = None
        if self.shuffled_rows:
            # The seed includes the number of the first chunk, so that pipelines that read different
            # chunks draw different permutations.
            rows = self._random(epoch, 1, int(chunks[0])).permutation(count)
        if self.num_pipelines > 1 and not self.divides_chunks:
            rows = np.arange(count) if rows is None else rows
            rows = rows[(self.pipeline - first_row) % self.num_pipelines :: self.num_pipelines]
        return _Window(chunks, rows, count if rows is None else len(rows))

    def num_rows(self, epoch: int) -> int:
        """Return the number of rows that the pipeline reads in an epoch."""
        return self._own(int(self._plan(epoch)[2][-1]))

    def find(self, row: int) -> tuple[int, int, int]:
        """Return the epoch of a row, the index of its window, and the rows before it in the window.

        Args:
            row: The number of rows that the pipeline has read before, in all epochs.
        """
        epoch = 0
        if not self.divides_chunks or self.num_pipelines == 1:
            epoch, row = divmod(row, self.num_rows(0))
        while row >= (length := self.num_rows(epoch)):
            epoch, row = epoch + 1, row - length
        read = np.array([self._own(int(end)) for end in self._plan(epoch)[2]])
        index = int(np.searchsorted(read, row, side="right")) - 1
        return epoch, index, row - int(read[index])

    def _own(self, num_rows: int) -> int:
        """Return the number of this pipeline's rows among an epoch's first `num_rows` rows."""
        if self.divides_chunks:
            return num_rows
        return len(range(self.pipeline, num_rows, self.num_pipelines))

    def _plan(
        self, epoch: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return this pipeline's chunks in an epoch, and the window bounds in chunks and rows."""
        # Without shuffled chunks, all epochs have the same plan, so use a single cache entry.
        return _plan(self, epoch if self.shuffles_chunks else 0)

    def _build_plan(
        self, epoch: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        chunks = np.arange(len(self.chunk_rows))
        if self.shuffles_chunks:
            chunks = self._random(epoch, 0).permutation(chunks)
        if self.divides_chunks:
            chunks = chunks[self.pipeline :: self.num_pipelines]
        ends = np.concatenate([[0], np.cumsum(self.chunk_rows[chunks])])
        bounds = np.array([0, *self._bounds(ends)])
        return chunks, bounds, ends[bounds]

    def _bounds(self, ends: npt.NDArray[np.int64]) -> Iterator[int]:
        bound = 0
        while bound < len(ends) - 1:
            wanted = ends[bound] + max(self.shuffled_rows, 1)
            bound = min(int(np.searchsorted(ends, wanted)), len(ends) - 1)
            yield bound

    def _random(self, *purpose: int) -> np.random.RandomState:
        # NumPy guarantees that a `RandomState` draws the same numbers in all NumPy versions.
        seeds = np.random.SeedSequence([self.seed % 2**64, *purpose])
        return np.random.RandomState(np.random.MT19937(seeds))


# A small cache is enough, because threads that read windows need only a few plans at a time.
@functools.lru_cache(maxsize=8)
def _plan(
    order: EpochOrder, epoch: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return order._build_plan(epoch)


def read_batches(
    source: Source,
    batch_size: int,
    order: EpochOrder,
    *,
    repeat: bool = False,
    drop_remainder: bool = False,
    first_row: int = 0,
) -> tf.data.Dataset:
    """Build the dataset of the batches of one input pipeline.

    A few windows of rows are in memory at a time; see `EpochOrder`.

    Args:
        source: The source.
        batch_size: The number of rows in a batch.
        order: The order of the rows.
        repeat: Whether to repeat the data indefinitely. A batch may then hold the last rows of one
            epoch and the first of the next.
        drop_remainder: Whether to drop the last rows if they do not fill a batch.
        first_row: The number of rows that this pipeline has read before.

    Returns:
        A dataset of tensors by the name of their column, or of vectors of records if the source has
        no columns.

    Raises:
        DataError: The data repeat, and there are fewer rows than pipelines.
    """
    if repeat and source.num_rows < order.num_pipelines:
        # Raise the error in all pipelines: if only one of them failed, the others would wait for
        # it.
        raise errors.DataError(
            f"Each of the {order.num_pipelines} input pipelines needs at least one row, but there "
            f"are only {source.num_rows}. Use more data or fewer input pipelines."
        )
    begin = order.find(first_row) if first_row else (0, 0, 0)
    reader = _WindowReader(source, order, begin)
    last = tf.int64.max if repeat else begin[0] + 1
    windows = tf.data.Dataset.range(begin[0], last).flat_map(reader.windows_of_epoch)
    rows = windows.map(reader.read, num_parallel_calls=_WINDOWS_AT_ONCE, deterministic=True)
    batches = rows.rebatch(batch_size, drop_remainder=drop_remainder or repeat)
    count = tf.data.INFINITE_CARDINALITY
    if not repeat:
        num_full, remainder = divmod(order.num_rows(0) - first_row, batch_size)
        count = num_full + (remainder > 0 and not drop_remainder)
    batches = batches.apply(tf.data.experimental.assert_cardinality(count))
    if repeat:
        length.set_epoch_length(batches, Fraction(order.num_rows(0), batch_size))
    return batches


def select(source: Source, part: slice) -> Source:
    """Return a part of a source: whole chunks if there are many, or else rows of each chunk.

    The part does not depend on the number of pipelines that share it.

    Args:
        source: The source.
        part: The slice of the chunks or of the rows of each chunk.
    """
    return source if part.step == 1 else _Part(source, part)


class _Part(Source):
    def __init__(self, source: Source, part: slice) -> None:
        all_chunks = range(len(source.chunk_rows))
        has_enough_chunks = len(all_chunks) >= halves.MIN_PARTS * part.step
        self._source = source
        self._chunks = all_chunks[part] if has_enough_chunks else all_chunks
        self._rows = slice(None) if has_enough_chunks else part
        self.has_columns = source.has_columns  # type: ignore[misc]
        self.files = source.files
        self.specs = source.specs
        counts = [len(range(source.chunk_rows[chunk])[self._rows]) for chunk in self._chunks]
        self.chunk_rows = np.array(counts, np.int64)

    def read(self, chunk: int) -> Columns:
        columns = self._source.read(self._chunks[chunk])
        return {name: values[self._rows] for name, values in columns.items()}


class _WindowReader:
    """A reader of windows, each of which is identified by its epoch and its index in the epoch.

    Args:
        source: The source.
        order: The order of the rows.
        begin: The epoch and window at which to begin, and the number of rows to skip there.
    """

    def __init__(self, source: Source, order: EpochOrder, begin: tuple[int, int, int]) -> None:
        self._source = source
        self._order = order
        self._begin = begin
        self._names = list(source.specs)

    @user_code.not_converted
    def windows_of_epoch(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """Build a dataset of pairs `(epoch, window)`, one for each window of an epoch."""
        count = tf.numpy_function(self._count_windows, [epoch], tf.int64, stateful=False)
        first_epoch, first_window, _ = self._begin
        first = tf.where(epoch == first_epoch, tf.constant(first_window, tf.int64), 0)
        windows = tf.data.Dataset.range(first, tf.ensure_shape(count, []))
        return windows.map(user_code.not_converted(lambda window: (epoch, window)))

    @user_code.not_converted
    def read(self, epoch: tf.Tensor, window: tf.Tensor) -> dict[str, tf.Tensor] | tf.Tensor:
        """Return the rows of a window."""
        specs = self._source.specs
        values = tf.numpy_function(
            self._read, [epoch, window], [spec.dtype for spec in specs.values()], stateful=False
        )
        columns = {
            name: tf.ensure_shape(value, [None, *spec.shape])
            for (name, spec), value in zip(specs.items(), values, strict=True)
        }
        return columns if self._source.has_columns else columns[self._names[0]]

    def _count_windows(self, epoch: np.int64) -> np.int64:
        return np.int64(self._order.num_windows(int(epoch)))

    def _read(self, epoch: np.int64, index: np.int64) -> list[npt.NDArray[np.generic]]:
        window = self._order.window(int(epoch), int(index))
        rows = window.rows
        first_epoch, first_window, num_read = self._begin
        if num_read and (int(epoch), int(index)) == (first_epoch, first_window):
            rows = np.arange(window.num_rows) if rows is None else rows
            rows = rows[num_read:]
        chunks = [self._source.read(int(chunk)) for chunk in window.chunks]
        return [_take([chunk[name] for chunk in chunks], rows) for name in self._names]


def _take(
    parts: list[npt.NDArray[np.generic]], rows: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.generic]:
    values = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return values if rows is None else np.take(values, rows, axis=0)
