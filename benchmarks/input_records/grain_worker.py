"""A Grain reader of TFRecord files or, as Grain's best case, of ArrayRecord files of plain bytes.

python -m benchmarks.input_records.grain_worker --format=tfrecord --directory=...
"""

import argparse
import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
from array_record.python import array_record_module

from benchmarks.input_records import example_proto, records

_BYTES_OF_DENSE = 4 * records.NUM_DENSE


def read_tfrecord(files: list[str]) -> grain.IterDataset:
    each = grain.MapDataset.source(files).shuffle(seed=1).repeat()
    dataset = grain.experimental.InterleaveIterDataset(
        each.map(grain.experimental.TFRecordIterDataset), cycle_length=len(files)
    )
    dataset = grain.experimental.WindowShuffleIterDataset(
        dataset, window_size=records.SHUFFLE_BUFFER, seed=1
    )
    return dataset.map(example_proto.parse).batch(records.BATCH_SIZE, drop_remainder=True)


def read_array_record(path: pathlib.Path) -> grain.IterDataset:
    source = grain.sources.ArrayRecordDataSource([str(path)])
    dataset = grain.MapDataset.source(source).shuffle(seed=1).repeat().map(_parse_bytes)
    dataset = dataset.batch(records.BATCH_SIZE, drop_remainder=True)
    return dataset.to_iter_dataset(grain.ReadOptions(prefetch_buffer_size=records.MOST_PREPARED))


def write_array_record(path: pathlib.Path) -> None:
    """Write each record as bytes: its label, its numbers and its categories."""
    num_records = int((path.parent / "num_records").read_text())
    columns = records.make_columns(num_records)
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for index in range(num_records):
        writer.write(
            columns["label"][index].astype(np.int32).tobytes()
            + columns["dense"][index].tobytes()
            + columns["categorical"][index].astype(np.int32).tobytes()
        )
    writer.close()


def _parse_bytes(record: bytes) -> records.Columns:
    integers = np.frombuffer(record, np.int32)
    return {
        "label": integers[:1],
        "dense": np.frombuffer(record, np.float32, records.NUM_DENSE, offset=4),
        "categorical": integers[1 + records.NUM_DENSE :],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=["tfrecord", "array_record"], default="tfrecord")
    parser.add_argument("--processes", type=int, default=0, help="0 reads with threads.")
    args = records.parse_args(parser)
    logging.getLogger("absl").setLevel(logging.ERROR)
    if args.format == "tfrecord":
        dataset = read_tfrecord(args.files)
    else:
        path = args.directory / "records.arrayrecord"
        if not path.exists():
            write_array_record(path)
        dataset = read_array_record(path)
    if args.processes:
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=args.processes))
    batches: Iterator[Any] = iter(dataset)
    records.check(next(batches))
    records.run_rounds(args, batches)


if __name__ == "__main__":
    main()
