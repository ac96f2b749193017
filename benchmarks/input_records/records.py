"""The records of all readers: a label, 13 numbers and 26 categories, written once.

Only `write` needs TensorFlow; everything else uses NumPy.
"""

import argparse
import hashlib
import pathlib
from collections.abc import Iterator, Mapping

import numpy as np

from benchmarks import turns

__all__ = [
    "BATCH_SIZE",
    "MOST_PREPARED",
    "SHUFFLE_BUFFER",
    "Columns",
    "check",
    "make_columns",
    "parse_args",
    "run_rounds",
    "write",
]

NUM_DENSE = 13
NUM_CATEGORICAL = 26
NUM_CATEGORIES = 10_000
BATCH_SIZE = 512
SHUFFLE_BUFFER = 10_000

# The maximum number of batches that a reader may prefetch, if its library can limit it.
MOST_PREPARED = 32

# The arrays `label`, `dense` and `categorical`, with one row per record.
Columns = Mapping[str, np.ndarray]


def make_columns(num_records: int) -> Columns:
    """Return the records in columns."""
    rng = np.random.default_rng(5)
    return {
        "label": rng.integers(0, 2, (num_records, 1)).astype(np.int64),
        "dense": rng.normal(size=(num_records, NUM_DENSE)).astype(np.float32),
        "categorical": rng.integers(0, NUM_CATEGORIES, (num_records, NUM_CATEGORICAL)),
    }


def write(directory: pathlib.Path, num_records: int, num_files: int) -> pathlib.Path:
    """Write TFRecord files of `tf.train.Example`s unless they exist, and return their directory."""
    import tensorflow as tf

    key = f"{num_records}-{num_files}-{NUM_DENSE}-{NUM_CATEGORICAL}-{NUM_CATEGORIES}"
    directory = directory / hashlib.sha256(key.encode()).hexdigest()[:8]
    done = directory / "done"
    if done.exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    columns = make_columns(num_records)
    for file in range(num_files):
        path = directory / f"records-{file:05}-of-{num_files:05}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for index in range(file, num_records, num_files):
                example = tf.train.Example()
                feature = example.features.feature
                feature["label"].int64_list.value.extend(columns["label"][index])
                feature["dense"].float_list.value.extend(columns["dense"][index])
                feature["categorical"].int64_list.value.extend(columns["categorical"][index])
                writer.write(example.SerializeToString())
    done.touch()
    return directory


def parse_args(parser: argparse.ArgumentParser | None = None) -> argparse.Namespace:
    """Return the arguments of a worker: `files`, `records` per round, and its `turns.Rounds`."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--directory", type=pathlib.Path, required=True)
    parser.add_argument("--records", type=int, default=50_000, help="Records in a round.")
    turns.add_arguments(parser)
    args = parser.parse_args()
    args.files = sorted(map(str, args.directory.glob("*.tfrecord")))
    args.rounds = turns.Rounds.from_args(args)
    return args


def run_rounds(args: argparse.Namespace, batches: Iterator[Columns]) -> None:
    """Read a fixed number of batches per round.

    Args:
        args: The result of `parse_args`.
        batches: An infinite stream of batches of `BATCH_SIZE` records.
    """
    num_batches = args.records // BATCH_SIZE
    for measured in args.rounds:
        # Skip the batches that were prefetched during the turns of other workers.
        for _ in range(MOST_PREPARED):
            next(batches)
        with measured:
            checksum = 0
            for _ in range(num_batches):
                batch = next(batches)
                # The values of each batch are read, because some libraries compute batches lazily.
                checksum += int(batch["label"][0, 0]) + int(batch["categorical"][0, 0])
            measured.note(records=num_batches * BATCH_SIZE, checksum=checksum)


def check(batch: Columns) -> None:
    """Check that a batch has the expected shapes.

    Raises:
        ValueError: If a shape is different.
    """
    wanted = {"label": 1, "dense": NUM_DENSE, "categorical": NUM_CATEGORICAL}
    got = {name: tuple(batch[name].shape) for name in wanted}
    if got != {name: (BATCH_SIZE, size) for name, size in wanted.items()}:
        raise ValueError(f"A batch has the shapes {got}; expected {BATCH_SIZE} rows of {wanted}.")
