"""Examples from TensorFlow Datasets, which is imported only when a config asks for it."""

import dataclasses
import re
import zlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_lite.common import errors, plugins
from official_lite.data import file_reading

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
    """A dataset of the examples of a TFDS split.

    Args:
        name: The dataset's name, such as `mnist`.
        split: The split, such as `train` or `train[:90%]`.
        options: How to read its files.
        input_context: Which of how many input pipelines this is.
        data_dir: Where TFDS keeps its files; its own default if empty.
        as_supervised: Whether examples are `(input, label)` pairs.
        skip_decoding_feature: Comma-separated features that stay encoded.

    Raises:
        ConfigValueError: `tensorflow_datasets` is not installed.
    """
    if re.match(r"[\w-]+:(?![\d*])", name):
        plugins.refuse(
            name,
            f"The dataset {name!r} is of a namespace, whose code TFDS would load",
            "Wanted a dataset of TFDS itself, such as `mnist`.",
        )
    if data_dir:
        plugins.refuse(
            data_dir,
            f"`tfds_data_dir` is {data_dir!r}, where TFDS writes, and whose files name classes",
            "Set TFDS_DATA_DIR instead.",
        )
    tfds = _import_tfds()
    builder_kwargs = {"data_dir": data_dir} if data_dir else {}
    builder = tfds.builder(name, **builder_kwargs)
    context = input_context if options.sharding else None
    # Fewer files than pipelines: TFDS can't share them out, so the records are.
    shard_records = context is not None and _num_files(builder, split) < context.num_input_pipelines
    if shard_records and options.seed is None:
        # Every n-th record is only then another one in each pipeline if all have the same order.
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
    # An optional extra, and slow to import.
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


def _num_files(builder: Any, split: str) -> int:
    # A builder without splits, such as the one that TFDS mocks in tests, has one file.
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
        # The number of examples is known only of data that ends.
        assert_cardinality=not options.repeat,
        interleave_cycle_length=options.cycle_length,
        interleave_block_length=options.block_length,
        skip_prefetch=True,
    )
