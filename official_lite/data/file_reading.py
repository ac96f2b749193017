"""Reading of files into a dataset of records, by epochs, from any position, skipping damage."""

import concurrent.futures
import dataclasses
import os
import re
import shutil
import struct
import tempfile
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import tensorflow as tf
from absl import logging

from official_lite.common import errors, plugins, user_code
from official_lite.data import halves, input_errors

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

__all__ = [
    "FileReadingOptions",
    "file_order_seed",
    "num_sharing_pipelines",
    "read_files",
    "SoundRecords",
    "tolerant",
    "read_epochs",
    "read_tfds",
]


_MAX_FILES_IN_TURN = 16


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
    shared = _SharedFiles(files, dataset_fn, options, input_context)
    if not shared.are_divided:
        return shared.read_then_divide(repeat=options.repeat)
    names = tf.data.Dataset.from_tensor_slices(shared.files)
    if options.is_training:
        names = names.shuffle(
            len(shared.files),
            seed=file_order_seed(shared.files, options, input_context),
            reshuffle_each_iteration=not options.cache,
        )
    return shared.divide_then_read(names, repeat=options.repeat)


class _SharedFiles:
    """Files shared by n input pipelines, each of which reads its own files or every n-th record.

    Raises:
        DataError: In training, there are fewer records than pipelines, or the records can't be
            read. Every pipeline raises the error, because if only the pipeline without records
            failed, the others would wait for it forever.
    """

    def __init__(
        self,
        files: Sequence[str],
        dataset_fn: input_errors.DatasetFn,
        options: FileReadingOptions,
        input_context: tf.distribute.InputContext | None,
    ) -> None:
        input_errors.remember(files, dataset_fn)
        self.files = list(files)
        self.dataset_fn = dataset_fn
        # Ignore the number of pipelines, because a search that resumes with more workers must use
        # the same halves.
        if len(files) >= (2 if options.sharding else 1) * halves.MIN_PARTS:
            half, input_context = halves.split(input_context)
            self.files = self.files[half]
        # With fewer files, each half takes every n-th record before shuffling, so it has the same
        # records in every epoch.
        divides_records = isinstance(input_context, halves.HalfContext)
        self.num_pipelines = num_sharing_pipelines(options, input_context)
        self.pipeline = 0
        if input_context is not None and self.num_pipelines > 1:
            self.pipeline = input_context.input_pipeline_id
        self._options = options
        if 1 < len(self.files) < self.num_pipelines:
            logging.warning(
                "There are fewer files (%d) than input pipelines (%d), so each pipeline reads all "
                "files. Use more files for faster input.",
                len(self.files),
                self.num_pipelines,
            )
        has_enough_files = len(self.files) > 1 and len(self.files) >= self.num_pipelines
        self.are_divided = has_enough_files and not divides_records
        if self.num_pipelines > 1 and not self.are_divided and options.is_training:
            self._require_records_for_all()

    def _require_records_for_all(self) -> None:
        if not tf.executing_eagerly():
            return
        records = self.dataset_fn(self.files).take(self.num_pipelines)
        try:
            found = int(records.reduce(tf.constant(0, tf.int64), lambda count, *_: count + 1))
        except tf.errors.OpError as error:
            raise errors.DataError(input_errors.find_damage() or error.message) from error
        if found < self.num_pipelines:
            raise errors.DataError(
                f"Each of the {self.num_pipelines} input pipelines needs at least one record, but "
                f"there are only {found}. Use more data or fewer input pipelines."
            )

    def read_then_divide(self, *, repeat: bool) -> tf.data.Dataset:
        """Read all records of all files and keep the records of this pipeline."""
        records = user_code.converted(self.dataset_fn)(self.files)
        # Disable auto-sharding: tf.distribute would otherwise divide the files among the workers,
        # too.
        no_auto_shard = tf.data.Options()
        no_auto_shard.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.OFF
        )
        return self._divide(records.with_options(no_auto_shard), repeat)

    def divide_then_read(self, names: tf.data.Dataset, *, repeat: bool) -> tf.data.Dataset:
        """Read all records of this pipeline's share of `names`, a dataset of file names."""
        names = self._divide(names, repeat)
        options = self._options
        num_files = len(self.files) // self.num_pipelines
        cycle_length = options.cycle_length or min(num_files, _MAX_FILES_IN_TURN)
        # Read local TFRecord files without extra threads: handing a small record from one thread to
        # another takes longer than reading it from a local disk. Remote files, and records that
        # must be decompressed or decoded, are read in parallel.
        if self.dataset_fn is tf.data.TFRecordDataset and not any("://" in f for f in self.files):
            return names.interleave(self.dataset_fn, cycle_length, options.block_length)
        return names.interleave(
            user_code.converted(self.dataset_fn),
            cycle_length,
            options.block_length,
            num_parallel_calls=cycle_length,
            deterministic=options.deterministic,
        )

    def _divide(self, dataset: tf.data.Dataset, repeat: bool) -> tf.data.Dataset:
        if self.num_pipelines > 1:
            dataset = dataset.shard(self.num_pipelines, self.pipeline)
        return dataset.repeat() if repeat else dataset


def file_order_seed(
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


def num_sharing_pipelines(
    options: FileReadingOptions, input_context: tf.distribute.InputContext | None
) -> int:
    """Return the number of pipelines that share the files; 1 if each pipeline reads everything."""
    return input_context.num_input_pipelines if options.sharding and input_context else 1


# In a TFRecord file, each record starts with its length and a checksum of the length, and ends with
# a checksum of its content.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4

# A damaged file is checked in parts of about this size. Only a part with a damaged record is
# searched for that record.
_PART_BYTES = 1 << 22


def tolerant(dataset_fn: input_errors.DatasetFn, most: int) -> input_errors.DatasetFn:
    """Return a version of `dataset_fn` that skips at most `most` damaged records.

    Raises:
        ConfigValueError: `dataset_fn` is not `tf.data.TFRecordDataset`.
    """
    if not most:
        return dataset_fn
    if dataset_fn is not tf.data.TFRecordDataset:
        raise errors.ConfigValueError(
            f"`skip_bad_records` is {most}, but it supports only TFRecord files without "
            "compression."
        )
    return SoundRecords(most)


class SoundRecords:
    """A function that builds a dataset of the undamaged records of one or more TFRecord files.

    Each file is read twice in its first epoch, because it is checked first. A record with a damaged
    length always raises an error, because the start of the next record is then unknown.

    Args:
        most: The maximum number of damaged records in all files that this process reads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_damaged = 0
        # Maps each file to the path that is read instead.
        self._places: dict[str, str] = {}
        # Do not use a `TemporaryDirectory`, which warns if garbage collection releases it. This
        # object is usually released that way.
        self._copies = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, self._copies, ignore_errors=True)
        self._lock = threading.Lock()

    def __call__(self, files: str | Sequence[str] | tf.Tensor) -> tf.data.Dataset:
        files = tf.reshape(tf.convert_to_tensor(files), [-1])
        return tf.data.Dataset.from_tensor_slices(files).flat_map(self._read)

    def _read(self, file: tf.Tensor) -> tf.data.Dataset:
        place = tf.numpy_function(self._place_of, [file], tf.string)
        return tf.data.TFRecordDataset(tf.ensure_shape(place, []))

    def _place_of(self, name: bytes) -> bytes:
        file = os.fsdecode(name)
        with self._lock:
            if file not in self._places:
                self._places[file] = self._look_through(file)
            return os.fsencode(self._places[file])

    def _look_through(self, file: str) -> str:
        """Return `file` if it has no damaged records, or else the path of a copy without them."""
        if _first_problem(file) is None:
            return file
        place = os.path.join(self._copies, str(len(self._places)))
        whole = f"{place}.whole"
        tf.io.gfile.copy(file, whole, overwrite=True)
        bounds = [0]
        with open(place, "wb") as copy:
            for bound in _ends_of_records(whole):
                bounds.append(bound)
                if bound - bounds[0] >= _PART_BYTES:
                    self._copy_undamaged(file, whole, bounds, copy)
                    bounds = [bound]
            self._copy_undamaged(file, whole, bounds, copy)
        os.remove(whole)
        return place

    def _copy_undamaged(self, file: str, whole: str, bounds: list[int], copy: IO[bytes]) -> None:
        """Append the undamaged records of `whole` that lie within `bounds` to `copy`.

        Args:
            file: The original file, for messages.
            whole: A local copy of the file.
            bounds: The start offset of the first record, and the end offset of each record.
            copy: The file without damaged records.
        """
        with open(whole, "rb") as source, open(f"{whole}.part", "wb") as part:
            source.seek(bounds[0])
            content = source.read(bounds[-1] - bounds[0])
            part.write(content)
        problem = _first_problem(part.name)
        if problem is None:
            copy.write(content)
        elif len(bounds) > 2:
            middle = len(bounds) // 2
            self._copy_undamaged(file, whole, bounds[: middle + 1], copy)
            self._copy_undamaged(file, whole, bounds[middle:], copy)
        elif problem == ("corrupted", 0):
            raise errors.DataError(
                f"`{file}` has a record of unknown length at byte {bounds[0]}, so the rest of the "
                "file can't be read. `skip_bad_records` can't skip such a record. Replace or "
                "remove the file."
            )
        else:
            self._leave_out(f"`{file}` has a {problem[0]} record at byte {bounds[0]}")

    def _leave_out(self, damage: str) -> None:
        self._num_damaged += 1
        if self._num_damaged > self._most:
            raise errors.DataError(
                f"{damage}. The number of damaged records is now {self._num_damaged}, but "
                f"`skip_bad_records` allows only {self._most}. Replace the file, or increase "
                "`skip_bad_records`."
            )
        logging.warning(
            "%s. Skipping the record (%d of at most %d).", damage, self._num_damaged, self._most
        )


def _first_problem(file: str) -> tuple[str, int] | None:
    """Return the kind and byte offset of the first problem in a file; None if there is none."""
    with tf.init_scope():
        try:
            tf.data.TFRecordDataset(file).reduce(0, lambda count, _: count + 1)
        except tf.errors.DataLossError as error:
            match = re.search(r"(truncated|corrupted) record at (\d+)", error.message)
            if match is None:
                raise
            return match[1], int(match[2])
    return None


def _ends_of_records(path: str) -> Iterator[int]:
    """Yield the end offset of each record, computed from the record lengths in the file."""
    end, size = 0, os.path.getsize(path)
    with open(path, "rb") as file:
        while end < size:
            file.seek(end)
            # A truncated file may end within a header or a record.
            length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
            end = min(size, end + _HEADER_BYTES + length + _FOOTER_BYTES)
            yield end


_FILES_COUNTED_AT_ONCE = 16


def read_epochs(
    files: Sequence[str],
    dataset_fn: input_errors.DatasetFn,
    options: FileReadingOptions,
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
    shared = _SharedFiles(files, dataset_fn, options, input_context)
    epochs = _Epochs(shared, seed, shuffle_buffer_size)
    first, num_read = epochs.find(first_record) if first_record else (0, 0)
    return tf.data.Dataset.range(first, tf.int64.max).flat_map(epochs.read).skip(num_read)


class _Epochs:
    def __init__(self, shared: _SharedFiles, seed: int, shuffle_buffer_size: int) -> None:
        self._shared = shared
        self._files = shared.files
        self._seed = seed
        self._shuffle_buffer_size = shuffle_buffer_size

    @user_code.not_converted
    def read(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """Build the dataset of an epoch's records."""
        records = self._read_in_order(epoch)
        if not self._shuffle_buffer_size:
            return records
        seed = tf.random.stateless_uniform(
            [], self._seed_of(epoch), maxval=tf.int64.max, dtype=tf.int64
        )
        # Remove the graph's global seed, which would affect the shuffle order. A global seed of 0
        # would also make TensorFlow raise an error here.
        tf.compat.v1.get_default_graph().seed = None
        return records.shuffle(self._shuffle_buffer_size, seed=seed, reshuffle_each_iteration=False)

    def find(self, record: int) -> tuple[int, int]:
        """Return the epoch of a record and the number of records before it in that epoch.

        Raises:
            DataError: There are no records, or a file is damaged.
        """
        logging.info(
            "Counting the records in %d files to find the position to resume from.",
            len(self._files),
        )
        with concurrent.futures.ThreadPoolExecutor(_FILES_COUNTED_AT_ONCE) as pool:
            counts = dict(zip(self._files, pool.map(self._count, self._files), strict=True))
        if not any(counts.values()):
            raise errors.DataError(
                f"No records found in {', '.join(self._files[:3])}. Set `input_path` to files with "
                "records."
            )
        if self._has_equal_epochs(counts):
            return divmod(record, self._length(0, counts))
        epoch = 0
        while record >= (length := self._length(epoch, counts)):
            epoch, record = epoch + 1, record - length
        return epoch, record

    def _read_in_order(self, epoch: tf.Tensor) -> tf.data.Dataset:
        # Do not repeat the dataset: it is a single epoch, and `read_epochs` concatenates the
        # epochs.
        if not self._shared.are_divided:
            return self._shared.read_then_divide(repeat=False)
        names = tf.data.Dataset.from_tensor_slices(self._order(epoch))
        return self._shared.divide_then_read(names, repeat=False)

    def _order(self, epoch: tf.Tensor) -> tf.Tensor:
        """Return all file names in the order of an epoch, which is the same on all hosts."""
        numbers = tf.range(len(self._files))
        seed = self._seed_of(epoch)
        return tf.gather(self._files, tf.random.experimental.stateless_shuffle(numbers, seed))

    def _seed_of(self, epoch: tf.Tensor) -> tf.Tensor:
        return tf.stack([tf.constant(self._seed, tf.int64), tf.cast(epoch, tf.int64)])

    def _count(self, file: str) -> int:
        try:
            count = self._shared.dataset_fn(file).reduce(
                tf.constant(0, tf.int64), lambda n, *_: n + 1
            )
        except tf.errors.OpError as error:
            raise errors.DataError(input_errors.describe(file, error)) from error
        return int(count)

    def _has_equal_epochs(self, counts: Mapping[str, int]) -> bool:
        """Return whether all epochs of this pipeline have the same number of records."""
        pipelines = self._shared.num_pipelines
        # If files are divided among pipelines, the files of a pipeline change from epoch to epoch.
        # Its epochs then have equal lengths only if all pipelines read equally many files, and all
        # files have the same number of records.
        divides_alike = len(self._files) % pipelines == 0 and len(set(counts.values())) == 1
        return pipelines == 1 or not self._shared.are_divided or divides_alike

    def _length(self, epoch: int, counts: Mapping[str, int]) -> int:
        """Return the number of records that this pipeline reads in an epoch."""
        share = slice(self._shared.pipeline, None, self._shared.num_pipelines)
        if not self._shared.are_divided:
            return len(range(sum(counts[file] for file in self._files))[share])
        return sum(counts[file.decode()] for file in self._order(tf.constant(epoch)).numpy()[share])


def read_tfds(
    name: str,
    split: str,
    options: FileReadingOptions,
    input_context: tf.distribute.InputContext | None = None,
    *,
    data_dir: str = "",
    as_supervised: bool = False,
    skip_decoding_feature: str = "",
) -> tf.data.Dataset:
    """Build a dataset of the examples of a TFDS split.

    Args:
        name: The name of the dataset, such as `mnist`.
        split: The split, such as `train` or `train[:90%]`.
        options: How to read the files.
        input_context: The index of this input pipeline and the number of pipelines.
        data_dir: The directory of the TFDS files. If empty, TFDS uses its default.
        as_supervised: Whether examples are `(input, label)` pairs.
        skip_decoding_feature: A comma-separated list of features that stay encoded.

    Raises:
        ConfigValueError: `tensorflow_datasets` is not installed.
    """
    if re.match(r"[\w-]+:(?![\d*])", name):
        plugins.refuse(
            name,
            f"The dataset {name!r} has a namespace, from which TFDS would load code",
            "Use a dataset of TFDS itself, such as `mnist`.",
        )
    if data_dir:
        plugins.refuse(
            data_dir,
            f"`tfds_data_dir` is {data_dir!r}. TFDS writes to this directory and can load classes "
            "that its files name",
            "Set TFDS_DATA_DIR instead.",
        )
    tfds = _import_tfds()
    builder_kwargs = {"data_dir": data_dir} if data_dir else {}
    builder = tfds.builder(name, **builder_kwargs)
    context = input_context if options.sharding else None
    # TFDS can't divide the files if there are fewer files than pipelines. In this case, each
    # pipeline reads all files and takes every n-th record.
    shard_records = context is not None and _num_files(builder, split) < context.num_input_pipelines
    if shard_records and options.seed is None:
        # Set a common seed, because the shards are disjoint only if all pipelines read the records
        # in the same order.
        options = dataclasses.replace(options, seed=zlib.crc32(f"{name} {split}".encode()))
    features = [feature.strip() for feature in skip_decoding_feature.split(",") if feature.strip()]
    dataset = tfds.load(
        name=name,
        split=split,
        download=True,
        shuffle_files=options.is_training,
        as_supervised=as_supervised,
        decoders={feature: tfds.decode.SkipDecoding() for feature in features} or None,
        read_config=_read_config(tfds.ReadConfig, options, None if shard_records else context),
        **builder_kwargs,
    )
    if context is not None and shard_records:
        dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset


def _import_tfds() -> Any:
    # Import TFDS only here, because it is an optional dependency and slow to import.
    try:
        import tensorflow_datasets as tfds
    except ModuleNotFoundError as error:
        if error.name != "tensorflow_datasets":
            raise
        raise errors.ConfigValueError(
            "`tfds_name` is set, but tensorflow_datasets is not installed. Run "
            "`pip install 'official-lite[tfds]'`."
        ) from error
    return tfds


def _num_files(builder: "tfds.core.DatasetBuilder", split: str) -> int:
    # For a builder without splits, such as the TFDS mock for tests, assume a single file.
    return len(builder.info.splits[split].file_instructions) if builder.info.splits else 1


def _read_config(
    make: Callable[..., Any],
    options: FileReadingOptions,
    input_context: tf.distribute.InputContext | None,
) -> Any:
    return make(
        input_context=input_context,
        shuffle_seed=options.seed,
        repeat_filenames=options.repeat,
        # TFDS can check the number of examples only if the data does not repeat.
        assert_cardinality=not options.repeat,
        interleave_cycle_length=options.cycle_length,
        interleave_block_length=options.block_length,
        skip_prefetch=True,
    )
