"""A benchmark of cost by the number of variables, metrics and steps.

python -m benchmarks.scaling --variables 10 100 1000 10000
"""

import argparse
import functools
import pathlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from benchmarks import report, toy_runs
from official_lite import orbit

WIDTH = 8


class ManyWeights(keras.layers.Layer):
    """A layer with a given number of small variables."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def build(self, shape: Any) -> None:
        self._all = [
            self.add_weight(shape=(WIDTH,), initializer="ones", name=f"weight_{index}")
            for index in range(self._count)
        ]
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        products = [x * tf.convert_to_tensor(weight) for weight in self._all]
        return tf.reduce_mean(tf.add_n(products), -1, keepdims=True) / self._count


def build_model(num_variables: int) -> keras.Model:
    inputs = keras.Input((WIDTH,))
    return keras.Model(inputs, ManyWeights(num_variables)(inputs))


def create_metrics(count: int) -> list[keras.metrics.Metric]:
    return [keras.metrics.MeanAbsoluteError(name=f"error_{index}") for index in range(count)]


def build(task: toy_runs.ToyTask, steps_per_loop: int = 1000) -> orbit.Controller:
    return toy_runs.build_controller(task, toy_runs.create_params(), steps_per_loop=steps_per_loop)


def seconds_of(function: Any, *arguments: Any) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def median_seconds_per_step(controller: orbit.Controller, steps: int, rounds: int) -> float:
    times = [seconds_of(toy_runs.train_further, controller, steps) for _ in range(rounds)]
    return statistics.median(times) / steps


def measure_variables(counts: Sequence[int], steps: int, rounds: int) -> report.Table:
    """Measure building, the first step, later steps, saving and restoring."""
    rows = []
    for count in counts:
        task = toy_runs.ToyTask(
            functools.partial(build_model, count), toy_runs.regression_batches(WIDTH)
        )
        start = time.perf_counter()
        controller = build(task)
        built = time.perf_counter() - start
        first = seconds_of(toy_runs.train_further, controller, 1)
        step = median_seconds_per_step(controller, steps, rounds)
        with tempfile.TemporaryDirectory() as directory:
            path = str(pathlib.Path(directory) / "saved")
            trainer: Any = controller.trainer  # `toy_runs.build_controller` always sets it.
            checkpoint = trainer.checkpoint
            saved = seconds_of(checkpoint.write, path)
            restored = seconds_of(checkpoint.read, path)
        rows.append((f"{count:,}", built, first, 1e6 * step, 1e6 * step / count, saved, restored))
        # Show the progress, because large models take minutes.
        print(f"{count:,} variables: the first step took {first:.0f} s", flush=True)
    return report.Table(
        title=f"Variables of {WIDTH} numbers each, AdamW",
        columns=(
            "variables",
            "build s",
            "first step s",
            "µs/step",
            "µs/step and variable",
            "save s",
            "restore s",
        ),
        rows=rows,
    )


def measure_metrics(counts: Sequence[int], steps: int, rounds: int) -> report.Table:
    """Measure building, the first step and later steps."""
    rows = []
    for count in counts:
        task = toy_runs.ToyTask(
            toy_runs.build_mlp,
            toy_runs.regression_batches(),
            functools.partial(create_metrics, count),
        )
        start = time.perf_counter()
        controller = build(task)
        built = time.perf_counter() - start
        first = seconds_of(toy_runs.train_further, controller, 1)
        step = median_seconds_per_step(controller, steps, rounds)
        rows.append((f"{count:,}", built, first, 1e6 * step))
    return report.Table(
        title="Metrics of a small MLP",
        columns=("metrics", "build s", "first step s", "µs/step"),
        rows=rows,
    )


def measure_steps(lengths: Sequence[int], rounds: int) -> report.Table:
    """Measure the same number of steps in one loop and in loops of up to 1,000 steps."""
    task = toy_runs.ToyTask(toy_runs.build_mlp, toy_runs.regression_batches())
    rows = []
    for length in lengths:
        one_loop = build(task, steps_per_loop=length)
        many_loops = build(task)
        for controller in (one_loop, many_loops):
            toy_runs.train_further(controller, length)
        rows.append(
            (
                f"{length:,}",
                1e6 * median_seconds_per_step(one_loop, length, rounds),
                1e6 * median_seconds_per_step(many_loops, length, rounds),
            )
        )
    return report.Table(
        title="Steps of a small MLP",
        columns=("steps", "µs/step in one loop", "µs/step in loops of 1,000 or less"),
        rows=rows,
        note="Each round ends with a report, so short rounds show the cost of a report.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variables", type=int, nargs="*", default=[10, 100, 1000, 10_000])
    parser.add_argument("--metrics", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--lengths", type=int, nargs="*", default=[1, 10, 100, 1000, 10_000])
    parser.add_argument(
        "--steps", type=int, default=50, help="The steps per round, where they do not vary."
    )
    parser.add_argument("--rounds", type=int, default=7)
    report.add_arguments(parser)
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    tables = [
        measure_variables(args.variables, args.steps, args.rounds),
        measure_metrics(args.metrics, 20 * args.steps, args.rounds),
        measure_steps(args.lengths, args.rounds),
    ]
    report.Report(
        benchmark="scaling",
        command=report.command_line("scaling"),
        tables=tables,
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
