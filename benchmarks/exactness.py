"""A benchmark of the cost of exact resume: the same training run with and without it.

python -m benchmarks.exactness
"""

import argparse
import contextvars
import functools
import os
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import paired, report, toy_runs
from benchmarks.steps import models
from experiments.vision.digits import configs, task
from official_lite import orbit
from official_lite.core import base_task
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays
from official_lite.modeling import replica_state

# The number of steps in a round, so that each round takes a few seconds.
STEPS = {"digits": 400, "convnet": 60}


class Convnet(base_task.Task):
    """The small convolutional network of `benchmarks.steps`, with dropout and batch norm."""

    def build_model(self) -> keras.Model:
        layers = keras.layers
        inputs = x = keras.Input(models.CONVNET_IMAGE)
        for index, filters in enumerate(models.CONVNET_FILTERS):
            x = layers.Conv2D(filters, 3, 1 if index == 0 else 2, padding="same")(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(x))
        return keras.Model(inputs, layers.Dense(models.CONVNET_CLASSES)(x))

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        rng = np.random.default_rng(0)
        images = rng.normal(size=(1000, *models.CONVNET_IMAGE)).astype(np.float32)
        labels = rng.integers(0, models.CONVNET_CLASSES, 1000).astype(np.int32)
        return arrays.from_arrays((images, labels), 64, shuffle=True, repeat=True)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        losses = keras.losses.sparse_categorical_crossentropy(
            labels, model_outputs, from_logits=True
        )
        return tf.reduce_mean(losses)


def create_task(name: str) -> tuple[base_task.Task, cfg.ExperimentConfig]:
    params = toy_runs.create_params()
    params.runtime.execution = "graph"
    if name == "convnet":
        return Convnet(params.task), params
    params.task = configs.digits_cnn().task
    params.override({"task": {"train_data": {"seed": None}}})
    return task.DigitsTask(params.task), params


def build_controller(name: str, *, exact: bool) -> orbit.Controller:
    """Build a controller; unless `exact`, its data and seeds do not depend on the step."""
    toy, params = create_task(name)
    build_inputs, take_seeds = toy.build_inputs, replica_state.StepSeeds
    if exact:
        return toy_runs.build_controller(toy, params, steps_per_loop=STEPS[name])

    def build_without_position(params: Any, input_context: Any = None) -> tf.data.Dataset:
        return contextvars.Context().run(build_inputs, params, input_context)

    # The method is replaced permanently, because the input may be built again later.
    setattr(toy, "build_inputs", build_without_position)  # noqa: B010
    with mock.patch.object(
        replica_state, "StepSeeds", lambda _, seed, **_kwargs: take_seeds(None, seed)
    ):
        return toy_runs.build_controller(toy, params, steps_per_loop=STEPS[name])


def create_variants(name: str) -> Mapping[str, Callable[[], None]]:
    return {
        label: functools.partial(
            toy_runs.train_further, build_controller(name, exact=exact), STEPS[name]
        )
        for label, exact in (("exact", True), ("not exact", False))
    }


def checkpoint_bytes(name: str) -> tuple[int, int]:
    """Return the sizes of a run's checkpoint and of one with only model, optimizer and step."""
    trainer: Any = build_controller(name, exact=True).trainer
    plain = tf.train.Checkpoint(
        model=trainer.model, optimizer=trainer.optimizer, global_step=trainer.global_step
    )
    with tempfile.TemporaryDirectory() as directory:
        with toy_runs.open_run(*create_task(name)) as runner:
            runner.controller.save_checkpoint()
            ours = _bytes_of(pathlib.Path(runner.model_dir), "ckpt-")
        plain.write(os.path.join(directory, "plain"))
        return ours, _bytes_of(pathlib.Path(directory), "plain")


def _bytes_of(directory: pathlib.Path, prefix: str) -> int:
    return sum(path.stat().st_size for path in directory.glob(f"{prefix}*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    report.add_arguments(parser)
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    measured = {name: paired.time_in_turn(create_variants(name), args.rounds) for name in STEPS}
    rows: list[tuple[report.Cell, ...]] = []
    for name, seconds in measured.items():
        milliseconds = [1e3 * statistics.median(times) / STEPS[name] for times in seconds.values()]
        ours, plain = checkpoint_bytes(name)
        ratio = paired.ratio(seconds, "exact", "not exact")
        rows.append((name, *milliseconds, ratio, ours, plain, ours / plain))
    table = report.Table(
        title="Milliseconds per step, and bytes per checkpoint",
        columns=("", "exact", "not exact", "÷", "checkpoint", "plain", "÷"),
        rows=rows,
        note="Not exact: the data have no saved position, and layers use Keras' own seeds. Plain: "
        "only model, optimizer and step, in one `tf.train.Checkpoint`.",
    )
    report.Report(
        benchmark="exactness",
        command=report.command_line("exactness"),
        tables=[table],
        measurements=measured,
    ).publish(args.results_dir)


if __name__ == "__main__":
    main()
