"""A reader that uses PyTorch's `DataLoader` on the TFRecord files, or gathers tensors by hand.

python -m benchmarks.input_records.torch_worker --processes=2 --directory=...
"""

import argparse
import random
import struct
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.input_records import example_proto, records

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4


class TFRecords(torch.utils.data.IterableDataset):
    """An infinite stream of TFRecord examples, shuffled in a buffer. Checksums are not verified."""

    def __init__(self, files: list[str]) -> None:
        self._files = files

    def __iter__(self) -> Iterator[records.Columns]:
        worker = torch.utils.data.get_worker_info()
        files = self._files[worker.id :: worker.num_workers] if worker else self._files
        rng = random.Random(worker.id if worker else 0)
        buffer: list[bytes] = []
        for record in self._read_forever(files, rng):
            if len(buffer) < records.SHUFFLE_BUFFER:
                buffer.append(record)
                continue
            index = rng.randrange(len(buffer))
            record, buffer[index] = buffer[index], record
            yield example_proto.parse(record)

    def _read_forever(self, files: list[str], rng: random.Random) -> Iterator[bytes]:
        while True:
            for path in rng.sample(files, len(files)):
                with open(path, "rb") as file:
                    while header := file.read(_HEADER.size):
                        yield file.read(_HEADER.unpack(header)[0])
                        file.seek(_FOOTER_BYTES, 1)


def gather(num_records: int) -> Iterator[Any]:
    """Yield batches of rows from tensors in memory, in a new random order in each epoch."""
    columns = {
        name: torch.from_numpy(column) for name, column in records.make_columns(num_records).items()
    }
    while True:
        for rows in torch.randperm(num_records).split(records.BATCH_SIZE):
            yield {name: column[rows] for name, column in columns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=0, help="The workers of the `DataLoader`.")
    parser.add_argument("--in_memory", action="store_true")
    args = records.parse_args(parser)
    if args.in_memory:
        batches = gather(int((args.directory / "num_records").read_text()))
    else:
        batches = iter(
            torch.utils.data.DataLoader(
                TFRecords(args.files), records.BATCH_SIZE, num_workers=args.processes
            )
        )
    records.check(next(batches))
    records.run_rounds(args, batches)


if __name__ == "__main__":
    main()
