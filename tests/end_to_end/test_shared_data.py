"""Workers that share their data, directly or through a tf.data service, read all examples."""

import json
import pathlib
import signal
from typing import Any

import portpicker
import pytest
import tensorflow as tf

from tests import commands, rounding

EXPERIMENT = '''
import keras
import tensorflow as tf

from official_lite.core import base_task, exp_factory, input_reader, task_factory
from official_lite.core import config_definitions as cfg
from official_lite.modeling import optimization


class TableConfig(cfg.TaskConfig):
    pass


@task_factory.register_task_cls(TableConfig)
class TableTask(base_task.Task):
    """Predicts a number from its row in an embedding table."""

    def build_model(self):
        table = keras.layers.Embedding(50, 4, name="table")
        return keras.Sequential([keras.Input((1,)), table, keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        def parse(record):
            number = tf.strings.to_number(record)
            return number[tf.newaxis], number[tf.newaxis, tf.newaxis] / 10.0

        return input_reader.InputReader(params, parser_fn=parse).read(input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(tf.square(labels - model_outputs))

    def build_metrics(self, training=True):
        return [keras.metrics.Sum("examples")]

    def process_metrics(self, metrics, labels, model_outputs):
        metrics[0].update_state(tf.ones_like(labels))


@exp_factory.register_config_factory("test/table")
def table():
    adamw = {"type": "adamw", "adamw": {"weight_decay_rate": 0.1, "lazy_rows": True}}
    rate = {"type": "constant", "constant": {"learning_rate": 0.05}}
    return cfg.ExperimentConfig(
        task=TableConfig(
            train_data=cfg.DataConfig(is_training=True, global_batch_size=8),
            validation_data=cfg.DataConfig(global_batch_size=4, drop_remainder=False),
        ),
        trainer=cfg.TrainerConfig(
            train_steps=12,
            steps_per_loop=3,
            validation_interval=6,
            optimizer_config=optimization.OptimizationConfig(
                {"optimizer": adamw, "learning_rate": rate}
            ),
        ),
    )
'''
# The number of validation records in each file. With two workers, one of them gets all records.
VALIDATION_SIZES = (5, 0, 2)


@pytest.fixture
def command(tmp_path: pathlib.Path) -> list[str]:
    (tmp_path / "table.py").write_text(EXPERIMENT)
    _write(tmp_path / "train", range(8))
    first = 0
    for index, size in enumerate(VALIDATION_SIZES):
        _write(tmp_path / f"validation-{index}", range(first, first + size))
        first += size
    return [
        "train.py",
        "--experiment=test/table",
        "--mode=train_and_eval",
        f"--import={tmp_path / 'table.py'}",
        f"--set=task.train_data.input_path={tmp_path}/train",
        f"--set=task.validation_data.input_path={tmp_path}/validation-*",
    ]


def _write(path: pathlib.Path, numbers: range) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in numbers:
            writer.write(str(number))


def _read(model_dir: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (model_dir / "metrics.json").read_text().splitlines()]


def _train(command: list[str], model_dir: pathlib.Path, workers: int) -> list[dict[str, Any]]:
    strategy = "multi_worker_mirrored" if workers > 1 else "one_device"
    hosts = [f"localhost:{portpicker.pick_unused_port()}" for _ in range(workers)]
    started = []
    for index in range(workers):
        cluster = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
        env = {"TF_CONFIG": json.dumps(cluster)} if workers > 1 else {}
        options = [f"--set=runtime.distribution_strategy={strategy}", f"--model_dir={model_dir}"]
        started.append(commands.Command([*command, *options], env=env))
    for one in started:
        assert one.wait() == 0, one.stderr[-3000:]
    return _read(model_dir)


@pytest.mark.slow
def test_two_workers_with_unequal_numbers_of_records_have_the_same_losses_as_one_worker(
    command: list[str], tmp_path: pathlib.Path
) -> None:
    one, two = (_train(command, tmp_path / str(n), workers=n) for n in (1, 2))
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        assert (a["split"], a["step"]) == (b["split"], b["step"])
        # Each of the three updates uses all 8 training records, each evaluation all 7 validation
        # records.
        assert a["examples"] == b["examples"] == (7 if a["split"] == "validation" else 24)
    for name in ("training_loss", "validation_loss"):
        losses = [[record[name] for record in run if name in record] for run in (one, two)]
        # The losses are those after up to twelve updates of eight records each.
        rounding.assert_close(losses[1], losses[0], roundings=12 * 8)


@pytest.mark.slow
def test_run_reads_from_a_data_service_and_reports_a_missing_dispatcher(
    command: list[str], tmp_path: pathlib.Path
) -> None:
    tool = ["-m", "official_lite.tools", "data_service"]
    dispatcher = commands.Command([*tool, "dispatcher", "--port=0"])
    dispatcher.wait_for("Dispatching at ")
    address = dispatcher.stderr.split("Dispatching at ")[1].split()[0]
    worker = commands.Command([*tool, "worker", f"--dispatcher={address}"])
    worker.wait_for("Working for ")
    options = [f"--tf_data_service={address}", "--set=runtime.distribution_strategy=one_device"]
    training = commands.run([*command, *options, f"--model_dir={tmp_path}/served"])
    assert training.returncode == 0, training.stderr[-3000:]
    assert "in an order that changes with every run" in training.stderr
    evaluations = [r for r in _read(tmp_path / "served") if r["split"] == "validation"]
    assert [r["examples"] for r in evaluations] == [7, 7]
    for one in (worker, dispatcher):
        one.send_signal(signal.SIGTERM)
        assert one.wait() == 0, one.stderr[-3000:]
    late = commands.run(
        [*command, *options, f"--model_dir={tmp_path}/late"],
        env={"OFFICIAL_LITE_CLUSTER_TIMEOUT": "1"},
    )
    assert late.returncode == 7, late.stderr[-3000:]
    assert f"No dispatcher of a tf.data service answered at {address}" in late.stderr
