"""Training gives the same losses under each synchronous strategy."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import portpicker
import pytest

from experiments.vision.digits import data
from tests import commands, rounding

COMMAND = (
    "train.py",
    "--experiment=vision/digits_mlp",
    "--mode=train_and_eval",
    "--set=trainer.train_steps=8",
    "--set=trainer.steps_per_loop=4",
    "--set=trainer.validation_interval=4",
)
# The number of roundings in eight updates of 64 examples each.
ROUNDINGS = 8 * 64
# Rounding may change the prediction of an example whose two best classes are equally probable, and
# each accuracy is a mean over at least 4 * 64 examples.
ONE_EXAMPLE = 1 / (4 * 64)
# An experiment that also computes the accuracy from the outputs of all steps.
AGGREGATED = """
import numpy as np
import tensorflow as tf

from experiments.vision.digits import configs, task
from official_lite.core import exp_factory, task_factory


class AggregatedConfig(configs.DigitsConfig):
    pass


@task_factory.register_task_cls(AggregatedConfig)
class AggregatedTask(task.DigitsTask):
    def validation_step(self, inputs, model, metrics=None):
        logs = super().validation_step(inputs, model, metrics)
        images, labels = inputs
        predicted = tf.argmax(model(images, training=False), axis=-1)
        return {**logs, "is_right": predicted == tf.cast(labels, tf.int64)}

    def aggregate_logs(self, state, step_logs):
        return [*(state or []), *(part.numpy() for part in step_logs["is_right"])]

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        is_right = np.concatenate(aggregated_logs)
        return {"aggregated_accuracy": is_right.mean(), "num_examples": is_right.size}


@exp_factory.register_config_factory("test/aggregated")
def aggregated():
    params = configs.digits_mlp()
    own = params.task
    params.task = AggregatedConfig(
        model=own.model, train_data=own.train_data, validation_data=own.validation_data
    )
    return params
"""


def _train(
    model_dir: pathlib.Path,
    strategy: str,
    workers: int = 1,
    options: Sequence[str] = (),
    **runtime: str,
) -> list[Any]:
    """Train with a strategy, and return the records in `metrics.json`."""
    args = list(options)
    args += [f"--set=runtime.{name}={value}" for name, value in runtime.items()]
    args += [f"--set=runtime.distribution_strategy={strategy}", f"--model_dir={model_dir}"]
    hosts = [f"localhost:{portpicker.pick_unused_port()}" for _ in range(workers)]
    started = []
    for index in range(workers):
        cluster = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
        env = {"TF_CONFIG": json.dumps(cluster)} if workers > 1 else {}
        started.append(commands.Command([*COMMAND, *args], env=env))
    for command in started:
        assert command.wait() == 0, command.stderr[-3000:]
    return [json.loads(line) for line in (model_dir / "metrics.json").read_text().splitlines()]


@pytest.mark.slow
def test_mirrored_and_multi_worker_training_have_the_same_losses_as_one_device(
    tmp_path: pathlib.Path,
) -> None:
    one = _train(tmp_path / "off", "off")
    assert [r["step"] for r in one if r["split"] == "validation"] == [4, 8]
    mirrored = _train(tmp_path / "mirrored", "mirrored", devices="[CPU:0,CPU:1]")
    workers = _train(tmp_path / "workers", "multi_worker_mirrored", workers=2)
    for other in (mirrored, workers):
        assert [(r["split"], r["step"]) for r in other] == [(r["split"], r["step"]) for r in one]
        for a, b in zip(one, other, strict=True):
            assert b["accuracy"] == pytest.approx(a["accuracy"], abs=ONE_EXAMPLE), a["step"]
            for name in a.keys() & {"training_loss", "validation_loss"}:
                rounding.assert_close(b[name], a[name], roundings=ROUNDINGS)


@pytest.mark.slow
def test_aggregate_logs_of_an_evaluation_receives_the_examples_of_all_workers(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "aggregated.py").write_text(AGGREGATED)
    options = [f"--import={tmp_path / 'aggregated.py'}", "--experiment=test/aggregated"]
    records = _train(tmp_path / "run", "multi_worker_mirrored", workers=2, options=options)
    for record in [r for r in records if r["split"] == "validation"]:
        assert record["num_examples"] == data.NUM_VALIDATION_EXAMPLES
        assert record["aggregated_accuracy"] == pytest.approx(record["accuracy"], abs=1e-6)
