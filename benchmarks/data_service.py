"""A benchmark of records per second, with and without a tf.data service.

It measures small records, which are parsed in batches, and records that each take about a tenth of
a millisecond on one core. Dispatcher and workers are processes on this machine and share its cores
with the reader.

python -m benchmarks.data_service --workers 1 2
"""

import argparse
import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from benchmarks import paired, report
from benchmarks.input_records import records
from official_lite.core import config_definitions as cfg
from official_lite.core import input_reader
from official_lite.data import tf_data_options

BASELINE = "no service"

_FEATURES = {
    "label": tf.io.FixedLenFeature((1,), tf.int64),
    "dense": tf.io.FixedLenFeature((records.NUM_DENSE,), tf.float32),
    "categorical": tf.io.FixedLenFeature((records.NUM_CATEGORICAL,), tf.int64),
}
_WORK_SIZE = 64


def work(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Compute for about as long as it takes to decode a small image."""
    seed = tf.cast(example["categorical"][:2], tf.int32)
    values = tf.random.stateless_uniform([_WORK_SIZE, _WORK_SIZE], seed)
    values = tf.tanh(values @ values / _WORK_SIZE)
    return {**example, "dense": example["dense"] + tf.reduce_mean(values)}


KINDS: Mapping[str, dict[str, Any]] = {
    "small records": {},
    "records with work": {"parser_fn": work},
}


@contextlib.contextmanager
def start(role: str, *arguments: str) -> Iterator[str]:
    """Start a dispatcher or worker process, and return the line that it prints when ready."""
    command = [sys.executable, "-m", "official_lite.tools", "data_service", role, *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        lines = process.stderr or ()
        said = next((line for line in lines if re.match("Dispatching|Working", line)), "")
        if not said:
            raise RuntimeError(
                f"`{' '.join(command)}` ended before it was ready. Run it by hand to see its error."
            )
        yield said.strip()
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def start_service(num_workers: int) -> Iterator[str]:
    """Start a service with the given number of workers, and return its address."""
    with contextlib.ExitStack() as stack:
        said = stack.enter_context(start("dispatcher", "--port=0"))
        address = said.split()[-1]
        for _ in range(num_workers):
            stack.enter_context(start("worker", f"--dispatcher={address}"))
        yield address


def read(directory: pathlib.Path, stages: Mapping[str, Any], address: str | None) -> Iterator[Any]:
    """Build training batches as `train.py` reads them."""
    params = cfg.DataConfig(
        input_path=f"{directory}/*.tfrecord",
        global_batch_size=records.BATCH_SIZE,
        is_training=True,
        shuffle_buffer_size=records.SHUFFLE_BUFFER,
        enable_tf_data_service=address is not None,
        tf_data_service_address=address,
    )
    decoder = input_reader.FeatureDecoder(_FEATURES)
    dataset = input_reader.InputReader(params, decoder_fn=decoder.decode, **stages).read()
    batches = tf_data_options.without_idle_autotuner(dataset).as_numpy_iterator()
    records.check(next(batches))
    return batches


def take(batches: Iterator[Any], count: int) -> None:
    for _ in range(count):
        next(batches)


def measure(
    directory: pathlib.Path, kind: str, names: Mapping[str, int], args: argparse.Namespace
) -> report.Table:
    """Measure each service, which is restarted in each round so that it can't prefetch earlier."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for name, num_workers in names.items():
            service = start_service(num_workers) if num_workers else contextlib.nullcontext()
            with service as address:
                seconds[name].append(measure_once(directory, kind, address, args))
    return tabulate(kind, seconds, args.batches * records.BATCH_SIZE)


def measure_once(
    directory: pathlib.Path, kind: str, address: str | None, args: argparse.Namespace
) -> float:
    """Return the seconds for reading batches; the iterator is released before the service stops."""
    batches = read(directory, KINDS[kind], address)
    # The first batches are not counted, because they were prefetched.
    take(batches, args.warmup)
    started = time.perf_counter()
    take(batches, args.batches)
    return time.perf_counter() - started


def tabulate(kind: str, seconds: Mapping[str, Sequence[float]], num_records: int) -> report.Table:
    rows = []
    for name, found in seconds.items():
        ratio = 1 / paired.ratio(seconds, name, BASELINE)
        rows.append((name, num_records / sorted(found)[len(found) // 2], ratio))
    return report.Table(
        title=f"{kind[0].upper()}{kind[1:]}, batches of {records.BATCH_SIZE}",
        columns=("", "records/s", f"× {BASELINE}"),
        rows=rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--num_records", type=int, default=200_000, help="The number of records in the files."
    )
    parser.add_argument("--num_files", type=int, default=8)
    parser.add_argument(
        "--batches", type=int, default=100, help="The number of batches in a round."
    )
    parser.add_argument(
        "--warmup", type=int, default=40, help="The number of batches before a round."
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--data_dir",
        type=pathlib.Path,
        default=pathlib.Path(tempfile.gettempdir()) / "benchmark_records",
    )
    report.add_arguments(parser)
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    directory = records.write(args.data_dir, args.num_records, args.num_files)
    names = {BASELINE: 0}
    names |= {f"{count} worker{'s' if count > 1 else ''}": count for count in args.workers}
    tables = [measure(directory, kind, names, args) for kind in KINDS]
    report.Report(
        benchmark="data_service",
        command=report.command_line("data_service"),
        tables=tables,
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
