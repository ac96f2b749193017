"""Reading of a source of rows into a dataset of batches, without Python code per row."""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import errors, user_code
from official_lite.data.sources.epoch_order import EpochOrder
from official_lite.data.sources.source import Source

__all__ = ["read_batches"]

# One window is converted while the next one is read.
_WINDOWS_AT_ONCE = 2


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
        # All pipelines fail alike. If only one did, the others would wait for it.
        raise errors.DataError(
            f"Each of the {order.num_pipelines} input pipelines needs at least one row, but there "
            f"are only {source.num_rows}."
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
    return batches.apply(tf.data.experimental.assert_cardinality(count))


class _WindowReader:
    """Reads windows by the numbers of their epoch and of themselves in the epoch.

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
        """Build the dataset of the numbers of the windows of an epoch, with the epoch."""
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
