"""A benchmark of row sources in rows per second, compared with the libraries that they use.

Every library reads the same files in batches of the same size, with its own batch reader, in order:
once with the batches as the reader returns them, and once with each column converted to NumPy,
which training requires. official_lite reads the files into batches of tensors, in order and
shuffled as in training. All of them run in turn. A row has 13 float32 values, 26 int64 values and a
label; an ArrayRecord record has 264 bytes.

python -m benchmarks.data_sources
"""

import argparse
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks import paired, report
from official_lite.data.sources import reading, registry

LIBRARY, NUMPY, ORDERED, SHUFFLED = (
    "library",
    "library, to NumPy",
    "official_lite, in order",
    "official_lite, shuffled",
)

_SHUFFLED_ROWS = 10_000

_NUM_DENSE, _NUM_CATEGORICAL = 13, 26

Columns = dict[str, npt.NDArray[Any]]


def create_columns(num_rows: int) -> Columns:
    rng = np.random.default_rng(0)
    columns: Columns = {
        f"dense_{i}": rng.normal(size=num_rows).astype(np.float32) for i in range(_NUM_DENSE)
    }
    for i in range(_NUM_CATEGORICAL):
        columns[f"category_{i}"] = rng.integers(0, 100_000, num_rows)
    columns["label"] = rng.integers(0, 2, num_rows)
    return columns


def _write_parquet(columns: Columns, path: pathlib.Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, row_group_size=50_000)


def _write_arrow(columns: Columns, path: pathlib.Path) -> None:
    import pyarrow as pa

    table = pa.table(columns)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=10_000)


def _write_csv(columns: Columns, path: pathlib.Path) -> None:
    import pyarrow as pa
    from pyarrow import csv

    csv.write_csv(pa.table(columns), path)


def _write_hugging_face(columns: Columns, path: pathlib.Path) -> None:
    import datasets
    import pyarrow as pa

    datasets.disable_progress_bars()
    datasets.Dataset(pa.table(columns)).save_to_disk(str(path))


def _write_array_record(columns: Columns, path: pathlib.Path) -> None:
    from array_record.python import array_record_module

    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:256")
    rows = np.column_stack([column.astype(np.int64) for column in columns.values()])
    for row in rows[:, :33]:
        writer.write(row.tobytes())
    writer.close()


def _read_parquet(path: pathlib.Path, batch_size: int) -> Iterable[Any]:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path).iter_batches(batch_size)


def _read_arrow(path: pathlib.Path, batch_size: int) -> Iterable[Any]:
    import pyarrow.dataset as pds

    return pds.dataset(path, format="arrow").to_batches(batch_size=batch_size)


def _read_csv(path: pathlib.Path, batch_size: int) -> Iterable[Any]:
    from pyarrow import csv

    # Ignore `batch_size`: this reader limits batches by bytes, by default to about 1 MiB.
    del batch_size
    return csv.open_csv(path)


def _read_hugging_face(path: pathlib.Path, batch_size: int) -> Iterable[Any]:
    import datasets

    return datasets.load_from_disk(str(path)).with_format("numpy").iter(batch_size)


def _read_array_record(path: pathlib.Path, batch_size: int) -> Iterable[Any]:
    from array_record.python import array_record_data_source

    # Read batches of records in the same way as Grain.
    with array_record_data_source.ArrayRecordDataSource(str(path)) as records:
        for begin in range(0, len(records), batch_size):
            end = min(begin + batch_size, len(records))
            yield records.__getitems__(list(range(begin, end)))


def _to_numpy(batch: Any) -> Any:
    if isinstance(batch, dict):
        return batch
    if isinstance(batch, Sequence):
        return np.array(batch, object)
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return {name: column.to_numpy(zero_copy_only=False) for name, column in columns}


Writer = Callable[[Columns, pathlib.Path], None]
Reader = Callable[[pathlib.Path, int], Iterable[Any]]

# The functions that write, read and convert each format, and the fraction of `--num_rows` to use.
FORMATS: Mapping[str, tuple[Writer, Reader, Callable[[Any], Any], float]] = {
    "parquet": (_write_parquet, _read_parquet, _to_numpy, 1.0),
    "arrow": (_write_arrow, _read_arrow, _to_numpy, 1.0),
    "huggingface": (_write_hugging_face, _read_hugging_face, _to_numpy, 1.0),
    "csv": (_write_csv, _read_csv, _to_numpy, 0.25),
    "array_record": (_write_array_record, _read_array_record, _to_numpy, 0.5),
}


def build_epoch(name: str, path: pathlib.Path, batch_size: int, *, shuffle: bool) -> Any:
    """Build the dataset of one epoch, as `InputReader` reads it.

    The infinite training dataset of an `InputReader` would read ahead between the rounds.
    """
    source = registry.open_source(name, [str(path)])
    order = reading.EpochOrder(
        chunk_rows=source.chunk_rows,
        shuffles_chunks=shuffle,
        shuffled_rows=_SHUFFLED_ROWS if shuffle else 0,
        seed=1,
    )
    return reading.read_batches(source, batch_size, order).prefetch(2)


def measure(name: str, path: pathlib.Path, num_rows: int, args: argparse.Namespace) -> list[Any]:
    """Return the row of one format for each of the three tables."""
    _, read, convert, _ = FORMATS[name]
    size = args.batch_size

    def read_by_library(convert: Callable[[Any], Any]) -> None:
        for batch in read(path, size):
            convert(batch)

    datasets = {
        ORDERED: build_epoch(name, path, size, shuffle=False),
        SHUFFLED: build_epoch(name, path, size, shuffle=True),
    }

    def read_dataset(kind: str) -> None:
        datasets[kind].reduce(tf.constant(0, tf.int64), lambda count, _: count + 1)

    variants: Mapping[str, Callable[[], None]] = {
        LIBRARY: lambda: read_by_library(lambda batch: batch),
        NUMPY: lambda: read_by_library(convert),
        ORDERED: lambda: read_dataset(ORDERED),
        SHUFFLED: lambda: read_dataset(SHUFFLED),
    }
    seconds, cpu_seconds = _time_in_turn(variants, args.rounds)
    rates = [round(num_rows / statistics.median(times)) for times in seconds.values()]
    cpu = [statistics.median(times) / num_rows * 1e6 for times in cpu_seconds.values()]
    ratios = [
        1 / paired.ratio(seconds, ours, library)
        for ours in (ORDERED, SHUFFLED)
        for library in (LIBRARY, NUMPY)
    ]
    return [[name, *rates], [name, *(f"{ratio:.2f}" for ratio in ratios)], [name, *cpu]]


def _time_in_turn(
    variants: Mapping[str, Callable[[], None]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the wall-clock and the CPU seconds (of all threads) of each call, by variant."""
    cpu_seconds: dict[str, list[float]] = {name: [] for name in variants}

    def timed(name: str) -> Callable[[], None]:
        def run() -> None:
            start = time.process_time()
            variants[name]()
            cpu_seconds[name].append(time.process_time() - start)

        return run

    seconds = paired.time_in_turn({name: timed(name) for name in variants}, rounds, warmup=1)
    return seconds, {name: times[1:] for name, times in cpu_seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument(
        "--num_rows", type=int, default=1_000_000, help="CSV gets a quarter of them."
    )
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    report.add_arguments(parser)
    args = parser.parse_args()
    measured = []
    for name in args.formats:
        write, *_, share = FORMATS[name]
        num_rows = int(args.num_rows * share)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "rows")
            write(create_columns(num_rows), path)
            measured.append(measure(name, path, num_rows, args))
            print(measured[-1], flush=True)
    rates, ratios, cpu = zip(*measured, strict=True)
    kinds = (LIBRARY, NUMPY, ORDERED, SHUFFLED)
    report.Report(
        benchmark="data_sources",
        command=report.command_line("data_sources"),
        tables=[
            report.Table(
                title=f"Rows per second in batches of {args.batch_size}",
                columns=("", *kinds),
                rows=rates,
                note="The library reads in order. CSV batches of the library have about 1 MiB.",
            ),
            report.Table(
                title="Speed relative to the library",
                columns=(
                    "",
                    "in order × library",
                    "in order × to NumPy",
                    "shuffled × library",
                    "shuffled × to NumPy",
                ),
                rows=ratios,
                note="Medians of the ratios of rounds in turn. Arrow maps files into memory: its "
                "batches, and their NumPy arrays, are views of bytes that have not been read yet. "
                "Hugging Face returns NumPy batches (`with_format`).",
            ),
            report.Table(
                title="CPU time of all threads, μs per row",
                columns=("", *kinds),
                rows=cpu,
            ),
        ],
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
