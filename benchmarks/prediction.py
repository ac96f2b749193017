"""A benchmark of `--mode=predict`: its speed relative to Keras, and its output after kills.

python -m benchmarks.prediction
python -m benchmarks.prediction --rows=1000000 --kills=5 --replicas=2
python -m benchmarks.prediction --rows=1000000 --kills=5 --workers=2

The speed is measured in one process, in turn: official_lite predicts and writes files, Keras
predicts and keeps the outputs in memory. Then the same rows are predicted twice: once without
interruption, and once by processes of which one is killed (SIGKILL) at random moments, after which
all are restarted. Both must write equal files, which contain each row once, in order.
"""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import portpicker
import tensorflow as tf
from absl import logging

from benchmarks import paired, report
from official_lite.common import files
from official_lite.core import (
    base_task,
    exp_factory,
    prediction_run,
    task_factory,
    train_lib,
    trainer_factory,
)
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays
from official_lite.prediction import output

EXPERIMENT = "benchmarks/prediction"

WIDTH = 32

CLASSES = 10

BATCH_SIZE = 4096

_MAX_SECONDS = 900.0


@dataclasses.dataclass
class RowsConfig(cfg.TaskConfig):
    """Config of a task with generated rows.

    Attributes:
        num_rows: The number of rows.
    """

    num_rows: int = 1_000_000


@task_factory.register_task_cls(RowsConfig)
class RowsTask(base_task.Task):
    """A small classifier of rows."""

    def build_model(self) -> keras.Model:
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((WIDTH,)),
                layers.Dense(64, "relu"),
                layers.Dense(CLASSES, "softmax"),
            ]
        )

    def build_inputs(
        self,
        params: cfg.DataConfig,
        input_context: tf.distribute.InputContext | None = None,
    ) -> tf.data.Dataset:
        is_training = bool(params.is_training)
        rows = _create_rows(self.task_config.num_rows)
        data = (rows, rows[:, :CLASSES].argmax(axis=1)) if is_training else rows
        return arrays.from_arrays(
            data,
            params.global_batch_size,
            shuffle=False,
            repeat=is_training,
            drop_remainder=params.drop_remainder,
            input_context=input_context,
        )

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        losses = keras.losses.sparse_categorical_crossentropy(labels, model_outputs)
        return tf.reduce_mean(losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


@functools.cache
def _create_rows(num_rows: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(num_rows, WIDTH)).astype(np.float32)


@exp_factory.register_config_factory(EXPERIMENT)
def experiment() -> cfg.ExperimentConfig:
    """Return the config of the benchmark."""
    data = cfg.DataConfig(global_batch_size=BATCH_SIZE, is_training=True)
    return cfg.ExperimentConfig(
        task=RowsConfig(
            train_data=data,
            validation_data=data.replace(is_training=False, drop_remainder=False),
        ),
        trainer=cfg.TrainerConfig(
            train_steps=5,
            steps_per_loop=5,
            writers=[],
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off", execution="graph"),
        prediction=cfg.PredictionConfig(format="parquet", rows_per_shard=50_000),
    )


def create_variants(
    params: cfg.ExperimentConfig, directory: pathlib.Path
) -> dict[str, Callable[[], None]]:
    """Return functions that predict all rows, by name.

    Each of them builds the input pipeline again, and compiles its function only once.
    """
    task = RowsTask(params.task)
    trainer = trainer_factory.create_trainer(params, task, train=False, evaluate=False)
    counts: list[int] = []
    data = params.task.validation_data or cfg.DataConfig()

    def predict_to_files(file_format: str) -> None:
        counts.append(0)
        place = {"output_dir": str(directory / str(len(counts))), "format": file_format}
        own = params.replace(prediction=place)
        prediction_run.run(trainer, own, str(directory), restored=None)
        files.remove_all(place["output_dir"])

    return {
        "Keras predict, in memory": lambda: trainer.model.predict(
            task.build_inputs(data), verbose=0
        ),
        "official_lite, Parquet": lambda: predict_to_files("parquet"),
        "official_lite, TFRecord": lambda: predict_to_files("tfrecord"),
        "official_lite, JSON lines": lambda: predict_to_files("jsonl"),
    }


def measure_speed(params: cfg.ExperimentConfig, rounds: int, formats: list[str]) -> dict[str, Any]:
    """Return the seconds of each round, by variant."""
    with tempfile.TemporaryDirectory() as directory:
        variants = create_variants(params, pathlib.Path(directory))
        chosen = {
            name: run
            for name, run in variants.items()
            if "Keras" in name or any(each in name.lower() for each in formats)
        }
        return paired.time_in_turn(chosen, rounds, warmup=1)


def kill_repeatedly(
    directory: pathlib.Path,
    num_rows: int,
    kills: int,
    seed: int,
    *,
    num_replicas: int = 1,
    num_workers: int = 1,
) -> dict[str, Any]:
    """Predict once without interruption and once with kills, and compare the files."""
    assignments = [f"task.num_rows={num_rows}"]
    if num_replicas > 1:
        devices = ",".join(f"CPU:{index}" for index in range(num_replicas))
        assignments.append("runtime.distribution_strategy=mirrored")
        assignments.append(f"runtime.devices=[{devices}]")
    start = functools.partial(_start, directory, assignments=assignments, num_workers=num_workers)
    params = exp_factory.get_exp_config(EXPERIMENT)
    params.override({"task": {"num_rows": num_rows}})
    task = RowsTask(params.task)
    train_lib.run_experiment(None, task, "train", params, str(directory / "run"))
    _wait_for_all(start("unbroken"))
    draw = random.Random(seed)
    killed_at = []
    total = output.read_progress(str(directory / "unbroken"))
    if total is None or not total.is_complete:
        raise RuntimeError(f"The uninterrupted prediction failed; see {directory}/unbroken.log.")
    for number in range(kills):
        processes = start("killed")
        begun = output.read_progress(str(directory / "killed"))
        before = begun.shards if begun is not None else 0
        left = total.shards - before - (kills - number)
        wanted = before + draw.randint(0, max(0, 2 * left // (kills - number + 1)))
        _wait(functools.partial(_has_shards, directory / "killed", wanted), processes[0])
        time.sleep(draw.uniform(0, 0.05))
        if any(process.poll() is not None for process in processes):
            raise RuntimeError(
                f"The prediction ended before kill {number + 1}. Use more --rows or fewer --kills."
            )
        draw.choice(processes).send_signal(signal.SIGKILL)
        _wait_for_all(processes)
        killed_at.append(_rows(directory / "killed"))
    if any(_wait_for_all(start("killed"))):
        raise RuntimeError(
            f"The prediction failed after the last kill; see {directory}/killed.log."
        )
    indices = np.concatenate(list(_indices(directory / "killed")))
    return {
        "killed at rows": killed_at,
        "rows": len(indices),
        "each row once, in order": bool((indices == np.arange(num_rows)).all()),
        "equal files": _contents(directory / "killed") == _contents(directory / "unbroken"),
    }


def _start(
    directory: pathlib.Path, name: str, *, assignments: list[str], num_workers: int
) -> list[subprocess.Popen[bytes]]:
    """Start the processes that predict together."""
    ports = [str(portpicker.pick_unused_port()) for _ in range(num_workers)]
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    processes = []
    for index in range(num_workers):
        place = []
        if num_workers > 1:
            place.append("runtime.distribution_strategy=multi_worker_mirrored")
            place += [f"runtime.worker_hosts={hosts}", f"runtime.task_index={index}"]
        log = (directory / f"{name}.log").open("ab")
        command = [
            *(sys.executable, "-m", "official_lite.tools", "train"),
            *("--import=benchmarks.prediction", f"--experiment={EXPERIMENT}", "--mode=predict"),
            f"--model_dir={directory / 'run'}",
            f"--set=prediction.output_dir={directory / name}",
            *(f"--set={assignment}" for assignment in [*assignments, *place]),
        ]
        processes.append(subprocess.Popen(command, stdout=log, stderr=log))
    return processes


def _wait_for_all(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    return [process.wait() for process in processes]


def _wait(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _MAX_SECONDS
    while process.poll() is None and not condition():
        if time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"The prediction did not write enough shards in {_MAX_SECONDS:g} s.")
        time.sleep(0.002)


def _shards(directory: pathlib.Path) -> int:
    # While a running process replaces the file, `read_progress` returns its old or new content.
    found = output.read_progress(str(directory))
    return -1 if found is None else found.shards


def _has_shards(directory: pathlib.Path, wanted: int) -> bool:
    return _shards(directory) >= wanted


def _rows(directory: pathlib.Path) -> int:
    found = output.read_progress(str(directory))
    return 0 if found is None else found.rows


def _indices(directory: pathlib.Path) -> Iterator[np.ndarray[Any, Any]]:
    import pyarrow.parquet as pq

    for path in sorted(directory.glob("*.parquet")):
        yield pq.read_table(path, columns=[output.INDEX])[output.INDEX].to_numpy()


def _contents(directory: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("predictions-*")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replicas", type=int, default=1, help="Of one killed process.")
    parser.add_argument("--workers", type=int, default=1, help="Killed one at a time.")
    parser.add_argument(
        "--formats", nargs="*", default=["parquet", "tfrecord", "json"], help="Formats to time."
    )
    report.add_arguments(parser)
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    params = exp_factory.get_exp_config(EXPERIMENT)
    params.override({"task": {"num_rows": args.rows}})
    seconds = measure_speed(params, args.rounds, args.formats) if args.rounds else {}
    rows: list[tuple[report.Cell, ...]] = [
        (
            name,
            args.rows / statistics.median(times),
            paired.ratio(seconds, name, "Keras predict, in memory"),
        )
        for name, times in seconds.items()
    ]
    tables = [
        report.Table(
            title="Rows per second",
            columns=("variant", "rows/s", "time ÷ Keras"),
            rows=rows,
            note=f"{args.rows:,} rows of {WIDTH} numbers, two layers, batches of {BATCH_SIZE}.",
        )
    ]
    found: dict[str, Any] = {}
    if args.kills:
        with tempfile.TemporaryDirectory() as directory:
            found = kill_repeatedly(
                pathlib.Path(directory),
                args.rows,
                args.kills,
                args.seed,
                num_replicas=args.replicas,
                num_workers=args.workers,
            )
        print(json.dumps(found))
        tables.append(
            report.Table(
                title=f"{args.rows:,} rows, killed {args.kills} times",
                columns=("", "found"),
                rows=[(name, str(value)) for name, value in found.items()],
                note="Compared with the files of an undisturbed prediction.",
            )
        )
    report.Report(
        benchmark="prediction",
        command=report.command_line("prediction"),
        tables=tables,
        measurements={"seconds": seconds, "kills": found},
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
