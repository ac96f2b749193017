"""Batches of clicks, from files in Criteo's format or generated in memory."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from experiments.recommendation.criteo import configs, features, generator
from official_lite.common import errors
from official_lite.core import input_reader
from official_lite.data import arrays

__all__ = ["best_possible_auc", "build_dataset"]

# Maps each format to the dataset class that reads records and to the decoder of batches.
_READERS: Mapping[str, tuple[Callable[..., tf.data.Dataset], Callable[..., Any]]] = {
    "tsv": (tf.data.TextLineDataset, features.decode_lines),
    "tfrecord": (
        tf.data.TFRecordDataset,
        input_reader.FeatureDecoder(features.RECORD_FEATURES).decode,
    ),
}


def build_dataset(
    params: configs.CriteoDataConfig,
    table_rows: int,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Build batches of features and labels as returned by `features.to_model_inputs`.

    Args:
        params: The source of the examples.
        table_rows: The number of rows for each category.
        input_context: The index of this input pipeline and the number of pipelines.
    """
    if params.input_path:
        return _read_files(params, table_rows, input_context)
    return arrays.from_arrays(
        _generated_inputs(_generate(params), params.truth_seed, table_rows),
        params.global_batch_size,
        # The examples are independent, so they need no shuffling. A fixed order gives the same
        # batches under every strategy.
        shuffle=False,
        repeat=bool(params.is_training),
        drop_remainder=params.drop_remainder,
        input_context=input_context,
    )


def best_possible_auc(params: configs.CriteoDataConfig) -> float | None:
    """Return the best possible AUC of generated data, or None for files."""
    return None if params.input_path else _generate(params).best_possible_auc()


def _read_files(
    params: configs.CriteoDataConfig,
    table_rows: int,
    input_context: tf.distribute.InputContext | None,
) -> tf.data.Dataset:
    dataset_fn, decode = _READERS[params.file_format]

    @input_reader.takes_batches
    def parse(raw: dict[str, tf.Tensor]) -> Any:
        return features.to_model_inputs(raw, table_rows)

    reader = input_reader.InputReader(
        params, dataset_fn=dataset_fn, decoder_fn=decode, parser_fn=parse
    )
    return reader.read(input_context)


def _generate(params: configs.CriteoDataConfig) -> generator.Examples:
    if not params.num_generated:
        raise errors.ConfigValueError(
            "No data are configured. Set `input_path` to files in Criteo's format, or set "
            "`num_generated` to a number of examples."
        )
    return _generate_once(params.truth_seed, params.split, params.num_generated)


# Cached for training and validation, because a trainer requests its data more than once.
@functools.lru_cache(maxsize=2)
def _generate_once(seed: int, split: str, count: int) -> generator.Examples:
    return generator.generate(seed, split, count)


def _generated_inputs(
    examples: generator.Examples, seed: int, table_rows: int
) -> tuple[dict[str, Any], Any]:
    """Return the features and labels that a reader would produce from files with these examples."""
    truth = generator.Truth(seed)
    rows = features.hash_tokens(
        tf.constant(truth.tokens), tf.constant(truth.category_of_token, tf.int32), table_rows
    )
    inputs = {
        "integers": features.log_integers(tf.constant(examples.integers)).numpy(),
        "rows": rows.numpy()[examples.values],
    }
    return inputs, examples.labels[:, None].astype("float32")
