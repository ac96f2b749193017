"""A benchmark of the cost of virtual replicas: the same training run with and without them.

python -m benchmarks.virtual_replicas
"""

import argparse
import functools
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import exactness, paired, report, toy_runs
from benchmarks.steps import models
from official_lite.data import arrays

# The numbers of virtual replicas to compare, by the number of replicas.
COUNTS = {1: (0, 1, 2, 4), 2: (0, 2, 4)}

STEPS = 30

BATCH_SIZE = 64


class Convnet(exactness.Convnet):
    """The small convolutional network, with data that are divided among input pipelines."""

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        rng = np.random.default_rng(0)
        images = rng.normal(size=(1000, *models.CONVNET_IMAGE)).astype(np.float32)
        labels = rng.integers(0, models.CONVNET_CLASSES, 1000).astype(np.int32)
        return arrays.from_arrays(
            (images, labels), BATCH_SIZE, shuffle=True, repeat=True, input_context=input_context
        )


def create_variants(num_replicas: int, execution: str) -> Mapping[str, Callable[[], None]]:
    """Return functions that train for some steps, by the number of virtual replicas."""
    devices = [f"CPU:{index}" for index in range(num_replicas)]
    reduce = tf.distribute.ReductionToOneDevice()
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=reduce)
    variants = {}
    for count in COUNTS[num_replicas]:
        params = toy_runs.create_params()
        params.override(
            {
                "runtime": {"execution": execution},
                "trainer": {"virtual_replicas": count},
                "task": {"train_data": {"global_batch_size": BATCH_SIZE}},
            }
        )
        with strategy.scope():
            controller = toy_runs.build_controller(
                Convnet(params.task), params, steps_per_loop=STEPS
            )
        variants[str(count)] = functools.partial(toy_runs.train_further, controller, STEPS)
    return variants


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    report.add_arguments(parser)
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * max(COUNTS)
    tf.config.set_logical_device_configuration(cpu, logical)
    measured = {}
    rows: list[tuple[report.Cell, ...]] = []
    for num_replicas in COUNTS:
        for execution in ("graph", "xla"):
            seconds = paired.time_in_turn(create_variants(num_replicas, execution), args.rounds)
            measured[f"{execution}, {num_replicas}"] = seconds
            for count, times in seconds.items():
                milliseconds = 1e3 * statistics.median(times) / STEPS
                ratio = paired.ratio(seconds, count, "0")
                rows.append((num_replicas, execution, count, milliseconds, ratio))
    table = report.Table(
        title="Milliseconds per step",
        columns=("replicas", "execution", "virtual replicas", "step", "÷ without"),
        rows=rows,
        note="The convolutional network of `steps` with dropout and batch normalization, "
        f"{BATCH_SIZE} images per step, on two cores that the replicas share.",
    )
    report.Report(
        benchmark="virtual_replicas",
        command=report.command_line("virtual_replicas"),
        tables=[table],
        measurements=measured,
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
