"""The input readers of official_lite and of the Model Garden, which take the same arguments.

Each reads as its trainer does: the reader of official_lite runs without tf.data's autotuner.

python -m benchmarks.input_records.reader_worker --framework=official_lite --directory=...
"""

import argparse
import importlib
from typing import Any

import tensorflow as tf

from benchmarks.input_records import records

_FEATURES = {
    "label": tf.io.FixedLenFeature((1,), tf.int64),
    "dense": tf.io.FixedLenFeature((records.NUM_DENSE,), tf.float32),
    "categorical": tf.io.FixedLenFeature((records.NUM_CATEGORICAL,), tf.int64),
}


def parse_record(record: tf.Tensor) -> dict[str, tf.Tensor]:
    return tf.io.parse_single_example(record, _FEATURES)


def batch_and_parse(dataset: tf.data.Dataset, input_context: Any = None) -> tf.data.Dataset:
    """Parse a batch in one call, as a Model Garden user can do in `transform_and_batch_fn`."""
    del input_context
    return dataset.batch(records.BATCH_SIZE, drop_remainder=True).map(
        lambda batch: tf.io.parse_example(batch, _FEATURES), num_parallel_calls=tf.data.AUTOTUNE
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=["official_lite", "official"], required=True)
    parser.add_argument("--batched", action="store_true", help="Parse a batch at a time.")
    args = records.parse_args(parser)
    is_lite = args.framework == "official_lite"
    cfg = importlib.import_module(f"{args.framework}.core.config_definitions")
    input_reader = importlib.import_module(f"{args.framework}.core.input_reader")
    params = cfg.DataConfig(
        input_path=args.files,
        global_batch_size=records.BATCH_SIZE,
        is_training=True,
        shuffle_buffer_size=records.SHUFFLE_BUFFER,
        # The autotuner would prefetch more batches than `run_rounds` skips before each round.
        prefetch_buffer_size=None if is_lite else records.MOST_PREPARED,
    )
    if not args.batched:
        stages: dict[str, Any] = {"parser_fn": parse_record}
    elif is_lite:
        stages = {"decoder_fn": input_reader.FeatureDecoder(_FEATURES).decode}
    else:
        stages = {"transform_and_batch_fn": batch_and_parse}
    dataset = input_reader.InputReader(params, **stages).read()
    if is_lite:
        autotuning = importlib.import_module("official_lite.data.tf_data_options")
        dataset = autotuning.without_idle_autotuner(dataset)
    batches = dataset.as_numpy_iterator()
    records.check(next(batches))
    records.run_rounds(args, batches)


if __name__ == "__main__":
    main()
