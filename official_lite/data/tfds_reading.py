"""Reading of TensorFlow Datasets, which is imported only if a config uses it."""

import dataclasses
import re
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from official_lite.common import errors, plugins
from official_lite.data import file_reading

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

__all__ = ["read_tfds"]


def read_tfds(
    name: str,
    split: str,
    options: file_reading.FileReadingOptions,
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
            "Expected a dataset of TFDS itself, such as `mnist`.",
        )
    if data_dir:
        plugins.refuse(
            data_dir,
            f"`tfds_data_dir` is {data_dir!r}, to which TFDS writes, and whose files can name "
            "classes to load",
            "Set TFDS_DATA_DIR instead.",
        )
    tfds = _import_tfds()
    builder_kwargs = {"data_dir": data_dir} if data_dir else {}
    builder = tfds.builder(name, **builder_kwargs)
    context = input_context if options.sharding else None
    # TFDS cannot divide fewer files than pipelines, so the records are sharded instead.
    shard_records = context is not None and _num_files(builder, split) < context.num_input_pipelines
    if shard_records and options.seed is None:
        # The shards are disjoint only if all pipelines read the records in the same order.
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
    # TFDS is an optional dependency and slow to import.
    try:
        import tensorflow_datasets as tfds
    except ModuleNotFoundError as error:
        if error.name != "tensorflow_datasets":
            raise
        raise errors.ConfigValueError(
            "`tfds_name` is set, but tensorflow_datasets is not installed: "
            "`pip install 'official-lite[tfds]'`."
        ) from error
    return tfds


def _num_files(builder: "tfds.core.DatasetBuilder", split: str) -> int:
    # A builder without splits, such as the mock that TFDS uses in tests, has one file.
    return len(builder.info.splits[split].file_instructions) if builder.info.splits else 1


def _read_config(
    make: Callable[..., Any],
    options: file_reading.FileReadingOptions,
    input_context: tf.distribute.InputContext | None,
) -> Any:
    return make(
        input_context=input_context,
        shuffle_seed=options.seed,
        repeat_filenames=options.repeat,
        # The number of examples is known only for finite data.
        assert_cardinality=not options.repeat,
        interleave_cycle_length=options.cycle_length,
        interleave_block_length=options.block_length,
        skip_prefetch=True,
    )
