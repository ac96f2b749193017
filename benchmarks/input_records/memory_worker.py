"""Readers that gather rows from memory, with NumPy or in a `tf.data` pipeline.

python -m benchmarks.input_records.memory_worker --library=numpy --directory=...
"""

import argparse
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from benchmarks.input_records import records
from official_lite.data import arrays, tf_data_options


def gather_numpy(columns: records.Columns) -> Iterator[records.Columns]:
    num_records = len(columns["label"])
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(num_records)
        for start in range(0, num_records - records.BATCH_SIZE + 1, records.BATCH_SIZE):
            rows = order[start : start + records.BATCH_SIZE]
            yield {name: column[rows] for name, column in columns.items()}


def gather_tf(columns: records.Columns) -> Iterator[records.Columns]:
    num_records = len(columns["label"])
    tensors = {name: tf.constant(column) for name, column in columns.items()}
    dataset = tf.data.Dataset.range(num_records).shuffle(num_records).repeat()
    dataset = dataset.batch(records.BATCH_SIZE, drop_remainder=True)
    return (
        dataset.map(
            lambda rows: {name: tf.gather(column, rows) for name, column in tensors.items()},
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        .prefetch(tf.data.AUTOTUNE)
        .as_numpy_iterator()
    )


def gather_official_lite(columns: records.Columns) -> Iterator[records.Columns]:
    dataset = arrays.from_arrays(dict(columns), records.BATCH_SIZE, shuffle=True, repeat=True)
    return tf_data_options.without_idle_autotuner(dataset).as_numpy_iterator()


def slice_tf(columns: records.Columns) -> Iterator[records.Columns]:
    """Return batches of a `from_tensor_slices` dataset of examples, as in most programs."""
    dataset = tf.data.Dataset.from_tensor_slices(dict(columns))
    dataset = dataset.shuffle(records.SHUFFLE_BUFFER).repeat()
    dataset = dataset.batch(records.BATCH_SIZE, drop_remainder=True)
    return dataset.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


_WAYS = {
    "numpy": gather_numpy,
    "official_lite": gather_official_lite,
    "tf_gather": gather_tf,
    "tf_slices": slice_tf,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=list(_WAYS), default="numpy")
    args = records.parse_args(parser)
    num_records = int((args.directory / "num_records").read_text())
    batches = _WAYS[args.library](records.make_columns(num_records))
    records.check(next(batches))
    records.run_rounds(args, batches)


if __name__ == "__main__":
    main()
