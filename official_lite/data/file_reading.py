"""Reading of files into a dataset of records, divided among input pipelines.

If there are at least as many files as pipelines, each pipeline reads files of its own. If there are
fewer, each of the n pipelines reads all files and keeps every n-th record.
"""

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf
from absl import logging

from official_lite.common import errors
from official_lite.data import damaged_files

__all__ = [
    "FileReadingOptions",
    "num_sharing_pipelines",
    "read_files",
    "read_files_then_shard",
    "require_records_for_all",
    "shard_files_then_read",
    "shards_files",
]

MOST_FILES_IN_TURN = 16


@dataclass(frozen=True, kw_only=True)
class FileReadingOptions:
    """Options for reading files.

    Attributes:
        is_training: Whether to shuffle the file order and repeat the data.
        seed: Seed of the file order. None draws a seed, or, if several pipelines must agree on the
            order, derives one from the file names.
        sharding: Whether each pipeline reads only its own part of the data.
        cache: Whether a later stage caches the records. The data then does not repeat at this
            stage, and the file order is drawn only once.
        cycle_length: The number of files that are read in turn. None reads all files in turn, but
            at most 16.
        block_length: The number of consecutive records from each of these files.
        deterministic: Whether parallel reading keeps the order. None lets tf.data choose.
    """

    is_training: bool = False
    seed: int | None = None
    sharding: bool = True
    cache: bool = False
    cycle_length: int | None = None
    block_length: int | None = None
    deterministic: bool | None = None

    @property
    def repeat(self) -> bool:
        """Whether the data repeats at this stage; with a cache, it repeats after the cache."""
        return self.is_training and not self.cache


def read_files(
    files: Sequence[str],
    dataset_fn: Callable[..., tf.data.Dataset],
    options: FileReadingOptions,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build a dataset of the records in `files`.

    Args:
        files: The files, in the same order on every host.
        dataset_fn: Builds a dataset from a file or from a list of files, such as
            `tf.data.TFRecordDataset`.
        options: How to read the files.
        input_context: The index of this input pipeline and the number of pipelines.
    """
    damaged_files.remember(files, dataset_fn, options.is_training)
    if not shards_files(files, options, input_context):
        require_records_for_all(files, dataset_fn, options, input_context)
        return read_files_then_shard(files, dataset_fn, options, input_context)
    dataset = tf.data.Dataset.from_tensor_slices(list(files))
    if options.is_training:
        dataset = dataset.shuffle(
            len(files),
            seed=_file_order_seed(files, options, input_context),
            reshuffle_each_iteration=not options.cache,
        )
    return shard_files_then_read(dataset, files, dataset_fn, options, input_context)


def shards_files(
    files: Sequence[str],
    options: FileReadingOptions,
    input_context: tf.distribute.InputContext | None,
) -> bool:
    """Return whether each pipeline reads its own files, not every n-th record of all files."""
    num_pipelines = num_sharing_pipelines(options, input_context)
    if 1 < len(files) < num_pipelines:
        logging.warning(
            "%d files are fewer than the %d input pipelines, so each of these reads all files. "
            "More files would be faster.",
            len(files),
            num_pipelines,
        )
    return len(files) > 1 and len(files) >= num_pipelines


def require_records_for_all(
    files: Sequence[str],
    dataset_fn: Callable[..., tf.data.Dataset],
    options: FileReadingOptions,
    input_context: tf.distribute.InputContext | None,
) -> None:
    """Raise an error in training, on all pipelines, if there are fewer records than pipelines.

    If only the pipeline without records failed, the others would wait for it forever.

    Raises:
        DataError: There are fewer records than pipelines, or the records cannot be read.
    """
    pipelines = num_sharing_pipelines(options, input_context)
    if pipelines == 1 or not options.is_training or not tf.executing_eagerly():
        return
    records = dataset_fn(list(files)).take(pipelines)
    try:
        found = int(records.reduce(tf.constant(0, tf.int64), lambda count, *_: count + 1))
    except tf.errors.OpError as error:
        raise errors.DataError(damaged_files.find_damage() or error.message) from error
    if found < pipelines:
        raise errors.DataError(
            f"{pipelines} input pipelines need a record each, and there are {found} in all."
        )


def read_files_then_shard(
    files: Sequence[str],
    dataset_fn: Callable[..., tf.data.Dataset],
    options: FileReadingOptions,
    input_context: tf.distribute.InputContext | None,
) -> tf.data.Dataset:
    """Read all records of all files and keep those of this pipeline."""
    dataset = dataset_fn(list(files))
    # Without this, tf.distribute would try to divide the files among the workers.
    no_auto_shard = tf.data.Options()
    no_auto_shard.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    dataset = dataset.with_options(no_auto_shard)
    dataset = _shard(dataset, options, input_context)
    return dataset.repeat() if options.repeat else dataset


def shard_files_then_read(
    dataset: tf.data.Dataset,
    files: Sequence[str],
    dataset_fn: Callable[..., tf.data.Dataset],
    options: FileReadingOptions,
    input_context: tf.distribute.InputContext | None,
) -> tf.data.Dataset:
    """Read all records of this pipeline's part of `dataset`, a dataset of the names of `files`."""
    dataset = _shard(dataset, options, input_context)
    if options.repeat:
        dataset = dataset.repeat()
    num_files = len(files) // num_sharing_pipelines(options, input_context)
    cycle_length = options.cycle_length or min(num_files, MOST_FILES_IN_TURN)
    if _is_read_without_waiting(files, dataset_fn):
        return dataset.interleave(dataset_fn, cycle_length, options.block_length)
    return dataset.interleave(
        dataset_fn,
        cycle_length,
        options.block_length,
        num_parallel_calls=cycle_length,
        deterministic=options.deterministic,
    )


def _is_read_without_waiting(
    files: Sequence[str], dataset_fn: Callable[..., tf.data.Dataset]
) -> bool:
    """Return whether a single thread reads as fast as many.

    Handing a small record from one thread to another takes longer than reading it from a local
    disk. For remote files, or if records must be decompressed or decoded, reading several files in
    parallel is faster.
    """
    return dataset_fn is tf.data.TFRecordDataset and not any("://" in file for file in files)


def _file_order_seed(
    files: Sequence[str],
    options: FileReadingOptions,
    input_context: tf.distribute.InputContext | None,
) -> int | None:
    """Return the seed of the file order, which must be the same on all hosts.

    Hosts shuffle before they shard, so that files move between hosts from one epoch to the next. If
    the orders differed, some files would be read twice and others not at all. Without a configured
    seed, the seed is derived from the file names, which all hosts have in common. Directories are
    ignored because they may be mounted at different paths.
    """
    if options.seed is not None or num_sharing_pipelines(options, input_context) == 1:
        return options.seed
    return zlib.crc32("\n".join(map(os.path.basename, files)).encode())


def _shard(
    dataset: tf.data.Dataset,
    options: FileReadingOptions,
    input_context: tf.distribute.InputContext | None,
) -> tf.data.Dataset:
    if input_context is None or num_sharing_pipelines(options, input_context) == 1:
        return dataset
    return dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)


def num_sharing_pipelines(
    options: FileReadingOptions, input_context: tf.distribute.InputContext | None
) -> int:
    """Return the number of pipelines that share the files; 1 if each pipeline reads everything."""
    return input_context.num_input_pipelines if options.sharding and input_context else 1
