"""A benchmark of how long training pauses while a large state is saved.

For each way of saving, the benchmark trains the same number of small steps and saves once in
between. The stall is the wall time beyond that of the same steps without a save. The stall of a
background save therefore includes the slowdown of concurrent steps, and the time for which the save
continues after the last step.

python -m benchmarks.checkpoint_stall --gigabytes=1
"""

import argparse
import functools
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import paired, report, toy_runs
from official_lite import orbit
from official_lite.checkpoint import async_checkpoint_manager
from official_lite.core import train_lib
from official_lite.orbit import triggers

NUM_TABLES = 8
D_EMBEDDING = 64
IDS_PER_TABLE = 4
BATCH_SIZE = 32

BASELINE = "nothing is saved"


def build_model(gigabytes: float) -> keras.Model:
    """Build embedding tables with a total size in gigabytes, of which a batch uses a few rows.

    The tables are not trained: Keras copies a table in each step that changes its rows, but this
    benchmark needs a small step and a large state.
    """
    rows = int(gigabytes * 2**30 / 4 / D_EMBEDDING / NUM_TABLES)
    inputs = keras.Input((NUM_TABLES, IDS_PER_TABLE), dtype="int32")
    embedded = [
        keras.layers.Embedding(
            rows, D_EMBEDDING, embeddings_initializer="random_uniform", trainable=False
        )(inputs[:, index])
        for index in range(NUM_TABLES)
    ]
    x = keras.layers.Flatten()(keras.layers.Concatenate()(embedded))
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def make_batches() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 1000, (50, BATCH_SIZE, NUM_TABLES, IDS_PER_TABLE)).astype(np.int32)
    return ids, rng.normal(size=(50, BATCH_SIZE, 1)).astype(np.float32)


class SaveOnce(orbit.Hook):
    """A hook that saves once per round, in one of several ways, and records how long it takes."""

    def __init__(self) -> None:
        self.step = 0
        self.way = BASELINE
        self.seconds: dict[str, list[float]] = {}

    def open(self, runner: train_lib.OrbitExperimentRunner, directory: str) -> None:
        manager = tf.train.CheckpointManager(runner.trainer.checkpoint, directory, max_to_keep=1)
        self.ways: Mapping[str, Callable[[], object]] = {
            BASELINE: lambda: None,
            "tf.train.CheckpointManager.save": manager.save,
            "controller.save_checkpoint": runner.controller.save_checkpoint,
            "controller.save_checkpoint, at the training's priority": functools.partial(
                _save_at_equal_priority, runner.controller
            ),
        }

    def build_trigger(self) -> triggers.Trigger:
        return _AtStepOf(self)

    def after_step(self) -> None:
        start = time.perf_counter()
        self.ways[self.way]()
        self.seconds.setdefault(self.way, []).append(time.perf_counter() - start)


def _save_at_equal_priority(controller: orbit.Controller) -> None:
    # The patch may end when the call returns, because the priority has been set by then.
    with mock.patch.object(async_checkpoint_manager, "NICENESS", 0):
        controller.save_checkpoint()


class _AtStepOf(triggers.Trigger):
    """A trigger that fires at the current value of the hook's `step`."""

    def __init__(self, hook: SaveOnce) -> None:
        self._hook = hook

    def next_step(self, step: int) -> float:
        return self._hook.step if step < self._hook.step else math.inf

    def is_due(self, step: int) -> bool:
        return step == self._hook.step


def measure(
    runner: train_lib.OrbitExperimentRunner, saving: SaveOnce, steps: int, rounds: int
) -> dict[str, list[float]]:
    """Return the seconds that `steps` steps with one early save take, for each way of saving."""
    seconds: dict[str, list[float]] = {name: [] for name in saving.ways}
    # The first round is not counted, because its saves create objects that later saves reuse.
    for index in range(rounds + 1):
        for name in saving.ways:
            saving.way, saving.step = name, runner.controller.step + steps // 10
            start = time.perf_counter()
            toy_runs.train_further(runner.controller, steps)
            if index:
                seconds[name].append(time.perf_counter() - start)
            os.sync()
    return seconds


def seconds_per_step(runner: train_lib.OrbitExperimentRunner, steps: int = 100) -> float:
    toy_runs.train_further(runner.controller, steps)
    start = time.perf_counter()
    toy_runs.train_further(runner.controller, steps)
    return (time.perf_counter() - start) / steps


def tabulate(
    seconds: Mapping[str, list[float]], saving: SaveOnce, steps: int, gigabytes: float
) -> report.Table:
    rows = []
    for name, times in seconds.items():
        stalls = [one - other for one, other in zip(times, seconds[BASELINE], strict=True)]
        rows.append(
            (
                name,
                statistics.median(times),
                None if name == BASELINE else statistics.median(stalls),
                None if name == BASELINE else statistics.median(saving.seconds[name][1:]),
                paired.ratio(seconds, name, BASELINE),
            )
        )
    return report.Table(
        title=f"{gigabytes:g} GiB of state, saved once in {steps} steps",
        columns=("", "s for all steps", "stall s", "s in the call", f"× {BASELINE}"),
        rows=rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="The training time per round.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--directory", help="A directory on the disk to write checkpoints to.")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    report.add_arguments(parser)
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    params = toy_runs.create_params("sgd", ["trainer.max_to_keep=1", *args.set])
    saving = SaveOnce()
    task = toy_runs.ToyTask(lambda: build_model(args.gigabytes), make_batches())
    with (
        toy_runs.open_run(task, params, args.directory, hooks=[saving]) as runner,
        tempfile.TemporaryDirectory(dir=args.directory) as directory,
    ):
        saving.open(runner, directory)
        steps = max(10, int(args.seconds / seconds_per_step(runner)))
        seconds = measure(runner, saving, steps, args.rounds)
    report.Report(
        benchmark="checkpoint_stall",
        command=report.command_line("checkpoint_stall"),
        tables=[tabulate(seconds, saving, steps, args.gigabytes)],
        measurements={"seconds": seconds, "seconds_in_call": saving.seconds},
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
