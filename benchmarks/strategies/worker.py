"""A training loop on two replicas, by official_lite or hand-written.

python -m benchmarks.strategies.worker --model=convnet --loop=by_hand --strategy=mirrored

Under `multi_worker_mirrored`, this process starts a second one. The second process does not wait
for turns, because each of its steps waits for the first process.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import portpicker
import tensorflow as tf
from absl import logging

from benchmarks.steps import keras_models, keras_worker, models, tasks, worker
from official_lite.core import base_task, train_lib
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams, optimization
from official_lite.run import runtime

DEVICES = ["CPU:0", "CPU:1"]
STRATEGIES = ("mirrored", "multi_worker_mirrored")

# A function that trains for a number of steps and returns the mean loss and the metric.
Train = Callable[[int], dict[str, float]]


def by_hand(args: argparse.Namespace) -> Train:
    """Return the train function of TensorFlow's custom training guide, with a loop in the graph."""
    strategy = _create_strategy(args.strategy)
    with strategy.scope():
        model = keras_models.build(args.model, keras)
        optimizer = keras_worker.create_optimizer(args.model)
        optimizer.build(model.trainable_variables)
        loss_metric = keras.metrics.Mean()
        metric = keras.metrics.SparseCategoricalAccuracy()

    def replica_step(inputs: Any) -> None:
        features, labels = inputs
        with tf.GradientTape() as tape:
            outputs = model(features, training=True)
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
            )
            scaled = loss / strategy.num_replicas_in_sync
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        loss_metric.update_state(loss)
        metric.update_state(labels, outputs)

    @tf.function
    def train(iterator: Iterator[Any], num_steps: tf.Tensor) -> None:
        for _ in tf.range(num_steps):
            strategy.run(replica_step, args=(next(iterator),))

    dataset = strategy.distribute_datasets_from_function(
        lambda _: keras_models.build_dataset(args.model)
    )
    iterator = iter(dataset)

    def train_steps(num_steps: int) -> dict[str, float]:
        train(iterator, tf.constant(num_steps))
        report = {"loss": float(loss_metric.result()), "metric": float(metric.result())}
        loss_metric.reset_state()
        metric.reset_state()
        return report

    return train_steps


def by_official_lite(args: argparse.Namespace, model_dir: str) -> Train:
    """Return a train function that uses the runner of `train.py`."""
    params = tasks.create_params(cfg, optimization, args.model, models.intervals(args.steps)[0])
    params.runtime.distribution_strategy = args.strategy
    params.runtime.devices = DEVICES if args.strategy == "mirrored" else None
    for assignment in args.set:
        hyperparams.override_params_dict(params, assignment, is_strict=True)
    strategy = runtime.build_strategy(params.runtime)
    task = tasks.create_task_class(base_task.Task, keras)(params.task, args.model)
    with strategy.scope():
        runner = train_lib.OrbitExperimentRunner(strategy, task, "train", params, model_dir)
    controller = runner.controller

    def train_steps(num_steps: int) -> dict[str, float]:
        with strategy.scope():
            if not controller.step:
                runner.choose_execution()
            controller.train(controller.step + num_steps, checkpoint_at_completion=False)
        logs = controller.train_logs
        return {"loss": float(logs["training_loss"]), "metric": float(logs["metric"])}

    return train_steps


def _create_strategy(name: str) -> tf.distribute.Strategy:
    if name == "multi_worker_mirrored":
        return tf.distribute.MultiWorkerMirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(DEVICES)


@contextlib.contextmanager
def _second_process(model_dir: str) -> Iterator[None]:
    """Start the same command in another process, as the second worker of a cluster."""
    hosts = [f"localhost:{portpicker.pick_unused_port()}" for _ in range(2)]

    def describe(index: int) -> str:
        task = {"type": "worker", "index": index}
        return json.dumps({"cluster": {"worker": hosts}, "task": task})

    os.environ["TF_CONFIG"] = describe(0)
    command = [sys.executable, "-m", "benchmarks.strategies.worker", *sys.argv[1:]]
    command = [argument for argument in command if argument != "--paced"]
    environment = {**os.environ, "TF_CONFIG": describe(1)}
    with subprocess.Popen(
        [*command, f"--model_dir={model_dir}"], env=environment, stdout=subprocess.DEVNULL
    ) as second:
        try:
            yield
        finally:
            second.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=["official_lite", "by_hand"], required=True)
    parser.add_argument("--strategy", choices=STRATEGIES, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--model_dir", help="Passed to the second process only.")
    args = worker.parse_args(parser)
    logging.set_verbosity(logging.ERROR)
    with contextlib.ExitStack() as on_exit:
        model_dir = args.model_dir or on_exit.enter_context(tempfile.TemporaryDirectory())
        if args.strategy == "multi_worker_mirrored" and not args.model_dir:
            on_exit.enter_context(_second_process(model_dir))
        is_ours = args.loop == "official_lite"
        worker.run_rounds(args, by_official_lite(args, model_dir) if is_ours else by_hand(args))


if __name__ == "__main__":
    main()
