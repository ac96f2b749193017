"""Endless reading of files in epochs, which can start at any record.

The order of an epoch depends only on the seed and the number of the epoch. A training run that
resumes therefore opens the epoch in which it stopped and skips only the records of that epoch that
it has read.
"""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from absl import logging

from official_lite.common import errors, user_code
from official_lite.data import damaged_files, file_reading

__all__ = ["read_epochs"]


_FILES_COUNTED_AT_ONCE = 16


def read_epochs(
    files: Sequence[str],
    dataset_fn: damaged_files.DatasetFn,
    options: file_reading.FileReadingOptions,
    input_context: tf.distribute.InputContext | None = None,
    *,
    seed: int,
    shuffle_buffer_size: int = 0,
    first_record: int = 0,
) -> tf.data.Dataset:
    """Build the endless dataset of training records of one input pipeline.

    Args:
        files: The files, in the same order on every host.
        dataset_fn: Builds a dataset from a file or from a list of files.
        options: How to read the files.
        input_context: The index of this input pipeline and the number of pipelines.
        seed: The seed of all orders.
        shuffle_buffer_size: The size of the shuffle buffer in records. Shuffling does not cross
            epochs; 0 disables it.
        first_record: The number of records that this pipeline has read before. If it is not 0, all
            files are read once to count their records, which locates the epoch.
    """
    damaged_files.remember(files, dataset_fn, options.is_training)
    epochs = _Epochs(files, dataset_fn, options, input_context, seed, shuffle_buffer_size)
    first, num_read = epochs.find(first_record) if first_record else (0, 0)
    return tf.data.Dataset.range(first, tf.int64.max).flat_map(epochs.read).skip(num_read)


class _Epochs:
    def __init__(
        self,
        files: Sequence[str],
        dataset_fn: damaged_files.DatasetFn,
        options: file_reading.FileReadingOptions,
        input_context: tf.distribute.InputContext | None,
        seed: int,
        shuffle_buffer_size: int,
    ) -> None:
        self._files = list(files)
        self._dataset_fn = dataset_fn
        # Each file is read once per epoch; this class concatenates the epochs itself.
        self._options = dataclasses.replace(options, is_training=False)
        self._input_context = input_context
        self._seed = seed
        self._shuffle_buffer_size = shuffle_buffer_size
        self._shards_files = file_reading.shards_files(files, options, input_context)
        if not self._shards_files:
            file_reading.require_records_for_all(files, dataset_fn, options, input_context)

    @user_code.not_converted
    def read(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """Build the dataset of the records of an epoch."""
        records = self._read_in_order(epoch)
        if not self._shuffle_buffer_size:
            return records
        seed = tf.random.stateless_uniform(
            [], self._seed_of(epoch), maxval=tf.int64.max, dtype=tf.int64
        )
        # The seed of the program would affect the order, and if that seed is 0, TensorFlow fails
        # here.
        tf.compat.v1.get_default_graph().seed = None
        return records.shuffle(self._shuffle_buffer_size, seed=seed, reshuffle_each_iteration=False)

    def find(self, record: int) -> tuple[int, int]:
        """Return the epoch of a record and the number of records before it in that epoch.

        Raises:
            DataError: There are no records, or a file is damaged.
        """
        logging.info(
            "Counting the records in %d files, to go on behind those read.", len(self._files)
        )
        with concurrent.futures.ThreadPoolExecutor(_FILES_COUNTED_AT_ONCE) as pool:
            counts = dict(zip(self._files, pool.map(self._count, self._files), strict=True))
        if not any(counts.values()):
            raise errors.DataError(f"There are no records in {', '.join(self._files[:3])}.")
        epoch = 0
        while record >= (length := self._length(epoch, counts)):
            epoch, record = epoch + 1, record - length
        return epoch, record

    def _read_in_order(self, epoch: tf.Tensor) -> tf.data.Dataset:
        dataset_fn = user_code.converted(self._dataset_fn)
        if not self._shards_files:
            return file_reading.read_files_then_shard(
                self._files, dataset_fn, self._options, self._input_context
            )
        return file_reading.shard_files_then_read(
            tf.data.Dataset.from_tensor_slices(self._order(epoch)),
            self._files,
            dataset_fn,
            self._options,
            self._input_context,
        )

    def _order(self, epoch: tf.Tensor) -> tf.Tensor:
        """Return the names of all files in the order of an epoch, the same on all hosts."""
        numbers = tf.range(len(self._files))
        seed = self._seed_of(epoch)
        return tf.gather(self._files, tf.random.experimental.stateless_shuffle(numbers, seed))

    def _seed_of(self, epoch: tf.Tensor) -> tf.Tensor:
        return tf.stack([tf.constant(self._seed, tf.int64), tf.cast(epoch, tf.int64)])

    def _count(self, file: str) -> int:
        try:
            count = self._dataset_fn(file).reduce(tf.constant(0, tf.int64), lambda n, *_: n + 1)
        except tf.errors.OpError as error:
            raise errors.DataError(damaged_files.describe(file, error)) from error
        return int(count)

    def _length(self, epoch: int, counts: Mapping[str, int]) -> int:
        """Return the number of records of an epoch that belong to this pipeline."""
        pipelines = file_reading.num_sharing_pipelines(self._options, self._input_context)
        context = self._input_context
        index = context.input_pipeline_id if context and pipelines > 1 else 0
        if not self._shards_files:
            return len(range(index, sum(counts.values()), pipelines))
        files = self._order(tf.constant(epoch)).numpy()[index::pipelines]
        return sum(counts[file.decode()] for file in files)
