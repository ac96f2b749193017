"""The input pipeline that reads the batches of a `DataConfig`, in replaceable stages.

::

    files -> shard -> shuffle and repeat files -> records -> shuffle -> decode -> combine
          -> sample -> parse -> filter -> cache -> batch -> postprocess -> prefetch

A task's `build_inputs` is usually one line::

    return input_reader.InputReader(params, parser_fn=self.parse).read(input_context)

The decoder, the parser and the filter process single examples, as in the Model Garden. They can
also process whole batches, which is several times faster for small examples; see `FeatureDecoder`,
`takes_batches` and `vectorize`. Stages that take single examples still receive single examples, and
the resulting data is the same. docs/input.md explains when to use which.
"""

import contextlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import tensorflow as tf
from absl import logging

from official_lite.common import errors, nests
from official_lite.core import config_definitions as cfg
from official_lite.data import (
    arrays,
    data_service,
    file_reading,
    halves,
    input_errors,
    position,
    replicas,
    tf_data_options,
)
from official_lite.data.example_stream import (
    ExampleStream,
    FeatureDecoder,
    build_weighted_sampling_combine_fn,
    create_combine_fn,
    map_examples,
    takes_batches,
    vectorize,
)
from official_lite.data.file_patterns import match_files
from official_lite.data.sources import reading, registry

__all__ = [
    "FeatureDecoder",
    "InputReader",
    "build_weighted_sampling_combine_fn",
    "create_combine_fn",
    "from_arrays",
    "match_files",
    "takes_batches",
    "vectorize",
]

Files = list[str] | dict[str, list[str]]

# The number of examples that are mapped in parallel. It may exceed the number of cores, because
# starting a call and waiting for its result takes longer than mapping a small example.
_PARALLEL_CALLS = max(32, os.cpu_count() or 1)

# The default number of prefetched batches. More batches do not help. The number that tf.data's
# autotuner chooses would grow with every pause in training.
_PREFETCHED_BATCHES = 2

# The number of examples decoded in one call if the batch size is unknown.
_CHUNK_SIZE = 256


def from_arrays(
    examples: nests.Nest,
    params: cfg.DataConfig,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build the dataset of batches that a `DataConfig` describes from arrays in memory.

    The rows are shuffled in every epoch and repeated if `params.is_training`. A run that resumes
    continues with the next batch.

    Args:
        examples: An array, or a nest of arrays in tuples and dicts, all with one row per example;
            see `data.arrays.from_arrays`.
        params: `global_batch_size`, `is_training`, `seed` and `drop_remainder` are used.
        input_context: The argument of `Task.build_inputs`.

    Raises:
        ConfigValueError: `global_batch_size` is not divisible by the number of replicas.
        DataError: There are no rows, the arrays differ in length, or, with `drop_remainder`, the
            rows do not fill one batch.
    """
    return arrays.from_arrays(
        examples,
        params.global_batch_size,
        shuffle=bool(params.is_training),
        seed=params.seed,
        repeat=bool(params.is_training),
        drop_remainder=params.drop_remainder,
        input_context=input_context,
    )


class InputReader:
    """Reads the dataset that a `DataConfig` describes.

    Training data repeats indefinitely and is shuffled: first the order of the files, then the
    examples in a buffer of `shuffle_buffer_size`, where 0 disables example shuffling. With `cache`,
    the order of the files is fixed and the buffer shuffles within an epoch. Other data is read
    once, in order; set `drop_remainder=False` for it, or the examples that do not fill the last
    batch are dropped.

    Subclasses may override `get_files` and the underscored methods that `read` calls.

    Args:
        params: The location of the data and how to read it.
        dataset_fn: A function that creates a dataset of records from a file or a list of files.
        decoder_fn: A function that maps a serialized record to raw tensors, or, if it takes
            batches, a vector of records to batches of raw tensors.
        combine_fn: A function that combines a mapping of names to datasets into one dataset;
            required if `input_path` or `tfds_name` is a block of several. See `create_combine_fn`.
        sample_fn: A function that maps the dataset of raw tensors to another dataset.
        parser_fn: A function that maps the raw tensors of an example or of a batch to model inputs.
        filter_fn: A function that returns whether to keep an example, or a vector of these values
            for a batch.
        transform_and_batch_fn: A function that batches the dataset. By default the dataset is
            split into batches of `global_batch_size` over all replicas.
        postprocess_fn: A function that maps a batch to another one.

    Raises:
        ConfigTypeError: If a function other than `transform_and_batch_fn` takes an `input_context`.
        ConfigValueError: If the config is contradictory or incomplete.
        DataError: If no files match or the files are empty.
    """

    def __init__(
        self,
        params: cfg.DataConfig,
        dataset_fn: Callable[..., tf.data.Dataset] = tf.data.TFRecordDataset,
        decoder_fn: Callable[..., Any] | None = None,
        combine_fn: Callable[[Mapping[str, tf.data.Dataset]], tf.data.Dataset] | None = None,
        sample_fn: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None,
        parser_fn: Callable[..., Any] | None = None,
        filter_fn: Callable[..., tf.Tensor] | None = None,
        transform_and_batch_fn: (
            Callable[[tf.data.Dataset, tf.distribute.InputContext | None], tf.data.Dataset] | None
        ) = None,
        postprocess_fn: Callable[..., Any] | None = None,
    ) -> None:
        _check(params, combine_fn)
        for stage in (dataset_fn, decoder_fn, sample_fn, parser_fn, filter_fn, postprocess_fn):
            replicas.refuse_context(stage, "the `InputReader`")
        if params.source:
            _check_source(params, dataset_fn)
        self._params = params
        self._tfds_name = params.tfds_name
        self._matched_files = self.get_files(params.input_path)
        self._global_batch_size = params.global_batch_size
        self._is_training = bool(params.is_training)
        self._drop_remainder = params.drop_remainder
        self._shuffle_buffer_size = params.shuffle_buffer_size
        self._cache = params.cache
        self._deterministic = params.deterministic
        self._begin = _take_position(params)
        self._common_seed = self._begin.seed if self._begin and params.seed is None else params.seed
        # The seed of the pipeline that is read; see `_seed_of`.
        self._seed = self._common_seed
        # Whether records are read by `read_epochs`, which can start at any record of an epoch.
        self._in_epochs = False
        # Whether the dataset consists of row chunks from a `source`.
        self._reads_source = False
        # Whether the workers of a tf.data service can divide the files among themselves. A single
        # file that a custom `dataset_fn` reads may not be divisible.
        self._shares_files = isinstance(self._matched_files, list) and (
            len(self._matched_files) > 1 or dataset_fn is tf.data.TFRecordDataset
        )
        self._data_service = _data_service_options(params, shares_files=self._shares_files)
        self._dataset_fn = file_reading.tolerant(dataset_fn, params.skip_bad_records)
        self._decoder_fn = decoder_fn
        self._combine_fn = combine_fn
        self._sample_fn = sample_fn
        self._parser_fn = parser_fn
        self._filter_fn = filter_fn
        self._transform_and_batch_fn = transform_and_batch_fn
        self._postprocess_fn = postprocess_fn
        # tf.data's autotuner is used only if the config requests it: see docs/decisions/0010.
        self._autotune = bool(params.autotune_algorithm or params.ram_budget)

    def get_files(self, input_path: str | Sequence[str] | cfg.base_config.Config) -> Files | None:
        """Return the files of each source, in the same order on every host; None without a path."""
        if not input_path:
            return None
        reads_directories = self._params.source in registry.OF_DIRECTORIES
        return _for_each(input_path, lambda path: match_files(path, directories=reads_directories))

    def read(
        self,
        input_context: tf.distribute.InputContext | None = None,
        dataset: tf.data.Dataset | None = None,
    ) -> tf.data.Dataset:
        """Return the dataset of one input pipeline, with batches for one replica.

        Args:
            input_context: The context that `tf.distribute` passes: the number of pipelines and
                replicas, and the index of this pipeline. Without it, the batches are global.
            dataset: A dataset of records to use instead of the files.

        Raises:
            ConfigValueError: If `global_batch_size` is missing, or if it can't be divided among
                the replicas.
        """
        num_examples = self._params.num_examples or 0
        if self._is_training and 0 < num_examples < self._global_batch_size:
            replicas.warn_of_large_batch(self._global_batch_size, num_examples)
        shares_files = self._shares_files and dataset is None
        self._data_service = data_service.choose(
            _data_service_options(self._params, shares_files=shares_files),
            input_context,
            is_training=self._is_training,
        )
        self._reads_source = bool(self._params.source) and dataset is None
        self._seed = self._seed_of(input_context)
        # A tf.data service divides the files within the pass of one trainer, so several trainers
        # with the seed of the run would read the same batches.
        is_unseeded = self._is_training and self._data_service is not None
        with position.unseeded() if is_unseeded else contextlib.nullcontext():
            dataset = self._read_batches(input_context, dataset)
        if not self._params.apply_tf_data_service_before_batching:
            dataset = self._maybe_apply_data_service(dataset, input_context)
        dataset = self._prefetch(dataset.with_options(self._options()))
        if self._begin is not None:
            position.mark_begin(dataset)
        return dataset

    def _seed_of(self, input_context: tf.distribute.InputContext | None) -> int | None:
        """Return the seed of a pipeline.

        If every pipeline reads all data, each gets a different seed; otherwise all of them would
        read the same batches. With a `transform_and_batch_fn`, all get the same seed, because the
        function may divide the data, for which all pipelines need the same order.
        """
        is_common = self._params.sharding or self._transform_and_batch_fn is not None
        if self._common_seed is None or is_common or input_context is None:
            return self._common_seed
        return self._common_seed + input_context.input_pipeline_id

    def _read_batches(
        self, input_context: tf.distribute.InputContext | None, dataset: tf.data.Dataset | None
    ) -> tf.data.Dataset:
        if dataset is None:
            dataset = self._read_data_source(self._matched_files, self._dataset_fn, input_context)
        dataset = self._decode_and_parse_dataset(dataset, self._global_batch_size, input_context)
        if self._begin is not None and self._begin.batch and not self._in_epochs:
            num_read = self._begin.batches_of(input_context)
            logging.info(
                "Reading and skipping the first %d batches to reach the saved position.", num_read
            )
            # Repeat the stream, because it may end, for example if `sample_fn` takes only a part of
            # it. An uninterrupted run also reads it again.
            dataset = dataset.repeat().skip(num_read)
        if self._postprocess_fn is not None:
            dataset = map_examples(dataset, self._postprocess_fn, tf.data.AUTOTUNE)
        return dataset

    def _read_data_source(
        self,
        matched_files: Files | None,
        dataset_fn: Callable[..., tf.data.Dataset],
        input_context: tf.distribute.InputContext | None = None,
    ) -> tf.data.Dataset | dict[str, tf.data.Dataset]:
        options = self._reading_options()
        if self._tfds_name:
            return _for_each(self._tfds_name, lambda name: self._read_tfds(name, input_context))

        self._in_epochs = self._begin is not None and self._batches_are_records()
        if self._reads_source:
            return _for_each(matched_files, lambda files: self._read_rows(files, input_context))

        def read_files(files: list[str]) -> tf.data.Dataset:
            input_errors.require_records(files, dataset_fn, self._params.input_path)
            if self._in_epochs:
                return self._read_epochs(files, dataset_fn, input_context)
            context = self._sharing_context(input_context)
            return file_reading.read_files(files, dataset_fn, options, context)

        return _for_each(matched_files, read_files)

    def _sharing_context(
        self, input_context: tf.distribute.InputContext | None
    ) -> tf.distribute.InputContext | None:
        """Return the context in which pipelines share the data; None if `sharding` is false.

        Unlike the option `sharding` of `_reading_options`, the context does not depend on a tf.data
        service. The two streams of an architecture search therefore read different halves even if
        the service divides the files among its own workers.
        """
        return input_context if self._params.sharding else None

    def _batches_are_records(self) -> bool:
        """Return whether the number of batches read determines the number of records read."""
        has_one_source = isinstance(self._matched_files, list)
        others = (self._sample_fn, self._filter_fn, self._transform_and_batch_fn)
        return has_one_source and not self._cache and not any(others)

    def _read_epochs(
        self,
        files: list[str],
        dataset_fn: Callable[..., tf.data.Dataset],
        input_context: tf.distribute.InputContext | None,
    ) -> tf.data.Dataset:
        begin = cast(position.Position, self._begin)
        size = replicas.per_replica_batch_size(self._global_batch_size, input_context)
        return file_reading.read_epochs(
            files,
            dataset_fn,
            self._reading_options(),
            self._sharing_context(input_context),
            seed=cast(int, self._seed),
            shuffle_buffer_size=self._shuffle_buffer_size,
            first_record=begin.batches_of(input_context) * size,
        )

    def _read_rows(
        self, files: list[str], input_context: tf.distribute.InputContext | None
    ) -> tf.data.Dataset:
        """Build a dataset of row chunks, which are whole batches if `_batches_are_records()`."""
        source = registry.open_source(self._params.source, files, self._params.columns)
        options = self._reading_options()
        seed = file_reading.file_order_seed(files, options, input_context)
        half, whole = halves.split(self._sharing_context(input_context))
        pipelines = file_reading.num_sharing_pipelines(options, whole)
        source = reading.select(source, half)
        order = reading.EpochOrder(
            chunk_rows=source.chunk_rows,
            shuffles_chunks=options.is_training,
            shuffled_rows=self._shuffle_buffer_size if options.is_training else 0,
            # Draw different orders for the halves, so that their batches are independent.
            seed=(random.getrandbits(63) if seed is None else seed) ^ half.start,
            num_pipelines=pipelines,
            pipeline=whole.input_pipeline_id if whole and pipelines > 1 else 0,
        )
        size = self._chunk_size(self._global_batch_size, input_context)
        begin = self._begin if self._in_epochs else None
        drops_rows = self._drop_remainder and self._batches_are_records()
        # Warn only for a single pipeline. Several pipelines read different chunks and each drops
        # its own remaining rows, so the total number of rows does not determine the number of
        # dropped rows.
        if drops_rows and not options.repeat and pipelines == 1:
            replicas.warn_of_dropped_examples(self._global_batch_size, source.num_rows)
        return reading.read_batches(
            source,
            size,
            order,
            repeat=options.repeat,
            drop_remainder=drops_rows,
            first_row=begin.batches_of(input_context) * size if begin else 0,
        )

    def _chunk_size(self, batch_size: int, input_context: tf.distribute.InputContext | None) -> int:
        if self._transform_and_batch_fn is not None:
            return _CHUNK_SIZE
        return replicas.per_replica_batch_size(batch_size, input_context)

    def _decode_and_parse_dataset(
        self,
        dataset: tf.data.Dataset | dict[str, tf.data.Dataset],
        batch_size: int,
        input_context: tf.distribute.InputContext | None = None,
    ) -> tf.data.Dataset:
        size = self._chunk_size(batch_size, input_context)

        def as_stream(dataset: tf.data.Dataset, *, in_chunks: bool = False) -> ExampleStream:
            return ExampleStream(
                dataset,
                chunk_size=size,
                num_parallel_calls=tf.data.AUTOTUNE if self._autotune else _PARALLEL_CALLS,
                in_chunks=in_chunks,
                in_batches=in_chunks and self._batches_are_records(),
            )

        dataset = _for_each(dataset, self._maybe_shuffle)
        stream = _for_each(
            dataset,
            lambda one: as_stream(one, in_chunks=self._reads_source).map(self._decoder_fn),
        )
        if isinstance(stream, dict):
            combine = cast(Callable[..., tf.data.Dataset], self._combine_fn)
            stream = as_stream(combine(_for_each(stream, ExampleStream.singly)))
        if self._sample_fn is not None:
            stream = stream.apply(self._sample_fn)
        stream = stream.map(self._parser_fn).filter(self._filter_fn)
        if self._cache:
            stream = stream.apply(self._cache_and_repeat)
        if self._params.apply_tf_data_service_before_batching:
            stream = stream.apply(lambda ds: self._maybe_apply_data_service(ds, input_context))
        if self._transform_and_batch_fn is not None:
            return self._transform_and_batch_fn(stream.singly(), input_context)
        return stream.batch(size, drop_remainder=self._drop_remainder)

    def _maybe_apply_data_service(
        self,
        dataset: tf.data.Dataset,
        input_context: tf.distribute.InputContext | None = None,
    ) -> tf.data.Dataset:
        if self._data_service is None:
            return dataset
        return data_service.distribute(dataset, self._data_service, input_context)

    def _reading_options(self) -> file_reading.FileReadingOptions:
        # Set no seed and shard no files for a tf.data service: each of its workers reads in its own
        # order, and the service divides the files if requested. `read` also removes the seed of the
        # run.
        is_served = self._data_service is not None
        return file_reading.FileReadingOptions(
            is_training=self._is_training,
            seed=None if is_served else self._seed,
            sharding=self._params.sharding and not is_served,
            cache=self._cache,
            cycle_length=self._params.cycle_length,
            block_length=self._params.block_length,
            deterministic=self._deterministic,
        )

    def _read_tfds(
        self, name: str, input_context: tf.distribute.InputContext | None
    ) -> tf.data.Dataset:
        return file_reading.read_tfds(
            name,
            self._params.tfds_split,
            self._reading_options(),
            input_context,
            data_dir=self._params.tfds_data_dir,
            as_supervised=self._params.tfds_as_supervised,
            skip_decoding_feature=self._params.tfds_skip_decoding_feature,
        )

    def _maybe_shuffle(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        # With a cache, shuffle later, in `_cache_and_repeat`; otherwise the cache would keep the
        # order of the first epoch. `_read_epochs` and `_read_rows` shuffle while they read.
        is_in_order = not self._in_epochs and not self._reads_source
        is_shuffled_here = self._is_training and not self._cache and is_in_order
        return self._shuffle(dataset) if is_shuffled_here else dataset

    def _cache_and_repeat(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        dataset = dataset.cache()
        # Shuffling before repeating yields every example once per epoch.
        return self._shuffle(dataset).repeat() if self._is_training else dataset

    def _shuffle(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        if not self._shuffle_buffer_size:
            return dataset
        return dataset.shuffle(self._shuffle_buffer_size, seed=self._reading_options().seed)

    def _options(self) -> tf.data.Options:
        options = tf.data.Options()
        if self._deterministic is not None:
            options.deterministic = self._deterministic
        if self._params.autotune_algorithm:
            options.autotune.autotune_algorithm = tf_data_options.algorithm(
                self._params.autotune_algorithm
            )
        if self._params.ram_budget:
            options.autotune.ram_budget = self._params.ram_budget * 2**30
        return options

    def _prefetch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        size = self._params.prefetch_buffer_size
        if size == 0:
            return dataset
        if size is None:
            size = tf.data.AUTOTUNE if self._autotune else _PREFETCHED_BATCHES
        return dataset.prefetch(size)


def _check(params: cfg.DataConfig, combine_fn: Callable[..., Any] | None) -> None:
    if params.input_path and params.tfds_name:
        raise errors.ConfigValueError(
            "At most one of `input_path` and `tfds_name` can be specified, but got "
            f"{params.input_path!r} and {params.tfds_name!r}."
        )
    if not params.input_path and not params.tfds_name:
        raise errors.ConfigValueError(
            "No input is configured. Set `input_path` to the files, or `tfds_name` and "
            "`tfds_split` to a TensorFlow dataset."
        )
    if params.tfds_name and not params.tfds_split:
        raise errors.ConfigValueError(
            f"`tfds_name` is {params.tfds_name!r}, but `tfds_split` is not specified; set it, for "
            "example, to `train`."
        )
    sources = params.input_path or params.tfds_name
    if isinstance(sources, cfg.base_config.Config) and combine_fn is None:
        raise errors.ConfigValueError(
            "A combine_fn is required if `input_path` or `tfds_name` is a dict. Pass, for example, "
            "`create_combine_fn(params)`, which samples the datasets by weight."
        )


def _check_source(params: cfg.DataConfig, dataset_fn: Callable[..., tf.data.Dataset]) -> None:
    registry.require_known(params.source)
    refused = {
        "tfds_name": params.tfds_name,
        "skip_bad_records": params.skip_bad_records,
        # Python libraries read the sources, and the workers of the service can't run Python.
        "enable_tf_data_service": params.enable_tf_data_service,
    }
    for name, value in refused.items():
        if value:
            raise errors.ConfigValueError(
                f"`source` is {params.source!r}, which does not support `{name}`; got {value!r}. "
                "Remove one of the two fields."
            )
    if dataset_fn is not tf.data.TFRecordDataset:
        raise errors.ConfigValueError(
            f"`source` is {params.source!r}, which reads the files itself, but the reader was "
            "given a `dataset_fn`. Remove one of them."
        )


def _take_position(params: cfg.DataConfig) -> position.Position | None:
    """Return the training data position if the data order depends only on seeds, else None."""
    if (
        params.is_training
        and not params.enable_tf_data_service
        and params.deterministic is not False
    ):
        return position.take()
    return None


def _data_service_options(
    params: cfg.DataConfig, *, shares_files: bool
) -> data_service.DataServiceOptions | None:
    if not params.enable_tf_data_service:
        return None
    if params.skip_bad_records:
        raise errors.ConfigValueError(
            f"`skip_bad_records` is {params.skip_bad_records}, which the workers of a tf.data "
            "service don't support, because they can't run Python. Set it to 0, or set "
            "`enable_tf_data_service` to false."
        )
    return data_service.DataServiceOptions(
        address=params.tf_data_service_address,
        job_name=params.tf_data_service_job_name,
        batch_size=params.global_batch_size,
        before_batching=params.apply_tf_data_service_before_batching,
        shared_by_trainers=params.enable_shared_tf_data_service_between_parallel_trainers,
        trainer_id=params.trainer_id,
        # Some config classes of the Model Garden add this field.
        round_robin=getattr(params, "enable_round_robin_tf_data_service", False),
        shares_files=shares_files,
    )


def _for_each(value: object, fn: Callable[[Any], Any]) -> Any:
    """Apply `fn` to a single value, or to each value of a config block or dictionary."""
    if isinstance(value, cfg.base_config.Config):
        value = value.as_dict()
    if isinstance(value, dict):
        return {name: fn(item) for name, item in value.items()}
    return fn(value)
