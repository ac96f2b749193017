"""Tests of the memory estimate of a training step."""

import os
import pathlib
import subprocess
import sys
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite.core import step_memory
from tests import commands
from tests.line_experiment import BATCH_SIZE, LineTask

WIDTH = 4096
# The layers of a block, whose outputs the backward pass needs.
NUM_LAYERS = 4
NUM_BLOCKS = 4
# The bytes of the output of a layer, for the examples of a batch.
OUTPUT = 4 * WIDTH * BATCH_SIZE


class DeepTask(LineTask):
    """A task whose model has far larger activations than weights."""

    def build_model(self) -> keras.Model:
        blocks = []
        for index in range(NUM_BLOCKS):
            layers = [keras.layers.Activation("tanh") for _ in range(NUM_LAYERS)]
            blocks.append(keras.Sequential(layers, name=f"b_{index}"))
        first, last = keras.layers.Dense(WIDTH), keras.layers.Dense(1)
        return keras.Sequential([keras.Input((2,)), first, *blocks, last])


class RecurrentTask(LineTask):
    def build_model(self) -> keras.Model:
        layers = [keras.layers.Reshape((2, 1)), keras.layers.LSTM(3), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((2,)), *layers])


def estimate(experiment: Any, make_trainer: Any, task_cls: type = DeepTask, **trainer: Any) -> Any:
    params = experiment(trainer=trainer)
    return step_memory.estimate(make_trainer(params, task_cls=task_cls, evaluate=False))


def test_memory_estimate_counts_the_outputs_that_the_backward_pass_needs(
    experiment, make_trainer
) -> None:
    memory = estimate(experiment, make_trainer)
    kept = NUM_BLOCKS * NUM_LAYERS
    assert kept * OUTPUT <= memory.activations <= (kept + 3) * OUTPUT
    assert memory.parameters == 4 * (2 * WIDTH + WIDTH + WIDTH + 1)
    assert memory.is_complete
    name, size = memory.largest[0]
    assert "tanh" in name.lower()
    assert size == OUTPUT


def test_memory_estimate_counts_only_the_block_inputs_of_rematerialized_layers(
    experiment, make_trainer
) -> None:
    memory = estimate(experiment, make_trainer, remat=[r"b_\d+$"])
    kept = NUM_BLOCKS + NUM_LAYERS
    assert kept * OUTPUT <= memory.activations <= (kept + 4) * OUTPUT


def test_memory_estimate_is_for_one_micro_batch(experiment, make_trainer) -> None:
    whole = estimate(experiment, make_trainer)
    part = estimate(experiment, make_trainer, grad_accum_steps=4)
    assert (whole.batch_size, part.batch_size) == (BATCH_SIZE, BATCH_SIZE // 4)
    assert part.activations == pytest.approx(whole.activations / 4, rel=0.15)
    # The sums of the gradients have the size of the parameters.
    assert part.state - whole.state == pytest.approx(whole.parameters, rel=0.01)


def test_memory_estimate_is_for_one_replica(experiment, make_trainer, two_replicas) -> None:
    whole = estimate(experiment, make_trainer)
    with two_replicas.scope():
        half = estimate(experiment, make_trainer)
    assert half.batch_size == BATCH_SIZE // 2
    assert half.parameters == whole.parameters
    assert half.state == pytest.approx(whole.state, abs=1000)
    assert half.activations == pytest.approx(whole.activations / 2, rel=0.15)


def test_memory_estimate_says_at_least_if_some_sizes_are_unknown(experiment, make_trainer) -> None:
    memory = estimate(experiment, make_trainer, RecurrentTask)
    assert not memory.is_complete
    assert "at least" in memory.describe()


def test_estimating_memory_does_not_change_later_training_losses(experiment, make_trainer) -> None:
    losses = []
    for estimates in (False, True):
        trainer = make_trainer(experiment(), evaluate=False)
        if estimates:
            step_memory.estimate(trainer)
        losses.append([float(trainer.train(tf.constant(1))["training_loss"]) for _ in range(3)])
    assert losses[0] == losses[1]


# Trains a GPT with 12 layers, and prints the estimate and the peak of TensorFlow's allocator.
MEASURE = """
import sys, tempfile
import tensorflow as tf
from official_lite import orbit, pipeline
from official_lite.core import exp_factory, step_memory
import registry_imports

def estimate(hook):
    print(step_memory.estimate(hook.trainer).total)

def measure(hook, success):
    print(tf.config.experimental.get_memory_info("CPU:0")["peak"])

params = exp_factory.get_exp_config("language/char_gpt")
params.override({
    "task": {"input_path": sys.argv[1], "model": {"num_layers": 12},
             "train_data": {"global_batch_size": 32}},
    "trainer": {"train_steps": 3, "writers": []},
    "runtime": {"execution": "graph"},
})
hook = orbit.hooks.LambdaHook(before_train=estimate, after_train=measure)
with tempfile.TemporaryDirectory() as directory:
    pipeline.RunPipeline(params, "train", directory, hooks=[hook]).run()
"""


def test_memory_estimate_for_a_transformer_is_within_10_percent_of_the_peak(
    tmp_path: pathlib.Path,
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 500)
    # Only this allocator counts its memory on a CPU.
    env = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "true", "PYTHONPATH": str(commands.ROOT)}
    command = [sys.executable, "-c", MEASURE, str(text)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=commands.ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    estimated, measured = map(int, done.stdout.split())
    assert estimated == pytest.approx(measured, rel=0.1)
