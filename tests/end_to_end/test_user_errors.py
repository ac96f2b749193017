"""A mistake in a user's own code ends in one line that names the file and the line of it."""

import dataclasses
import pathlib
import subprocess

import pytest
import tensorflow as tf

from official_lite.core import tf_example_builder
from tests import commands

TASK = """
import dataclasses

import keras
import tensorflow as tf

from official_lite.core import base_task, exp_factory, input_reader, task_factory
from official_lite.core import config_definitions as cfg


@dataclasses.dataclass
class MineConfig(cfg.TaskConfig):
    fault: str = ""
    train_data: cfg.DataConfig = dataclasses.field(
        default_factory=lambda: cfg.DataConfig(
            input_path="rows.tfrecord", is_training=True, global_batch_size=4
        )
    )


@task_factory.register_task_cls(MineConfig)
class MineTask(base_task.Task):
    def build_inputs(self, params, input_context=None):
        label = "lable" if self.task_config.fault == "feature" else "label"
        features = {
            "x": tf.io.FixedLenFeature((2,), tf.float32),
            label: tf.io.FixedLenFeature((), tf.int64),
        }

        def parse(row):
            asked = "lable" if self.task_config.fault == "key" else label
            return row["x"], row[asked]  # key

        decode = input_reader.FeatureDecoder(features).decode
        reader = input_reader.InputReader(params, decoder_fn=decode, parser_fn=parse)
        return reader.read(input_context)

    def build_model(self):
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])

    def build_losses(self, labels, model_outputs, aux_losses=None):
        if self.task_config.fault == "one_hot":
            labels = tf.one_hot(labels, 3)
        return tf.reduce_mean(
            keras.losses.sparse_categorical_crossentropy(labels, model_outputs)  # one_hot
        )

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy()]

    def process_metrics(self, metrics, labels, model_outputs, **kwargs):
        if self.task_config.fault == "raise":
            raise RuntimeError("mine is wrong\\nand more of it")  # raise


def experiment(task):
    return cfg.ExperimentConfig(
        task=task,
        trainer=cfg.TrainerConfig(
            train_steps=2,
            checkpoint_interval=2,
            optimizer_config=cfg.OptimizationConfig(
                {"optimizer": {"type": "sgd"}, "learning_rate": {"type": "constant"}}
            ),
        ),
    )


@exp_factory.register_config_factory("mine")
def mine():
    return experiment(MineConfig())


@exp_factory.register_config_factory("misspelt")
def misspelt():
    return experiment(MineConfig(falt="key"))  # misspelt
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    result: subprocess.CompletedProcess[str]
    directory: pathlib.Path

    @property
    def lines(self) -> list[str]:
        """What was said behind the log."""
        lines = self.result.stderr.splitlines()
        starts = ("train of ", "Experiment finished")
        logged = [i for i, line in enumerate(lines) if line.startswith(starts)]
        return lines[logged[-1] + 1 :] if logged else lines

    def place(self, mark: str) -> str:
        """Where the line with a comment is."""
        lines = (self.directory / "mine.py").read_text().splitlines()
        (number,) = (i for i, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
        return f"{self.directory / 'mine.py'}:{number}, in `"


def run(directory: pathlib.Path, experiment: str = "mine", fault: str = "", *args: str) -> Outcome:
    (directory / "mine.py").write_text(TASK)
    with tf.io.TFRecordWriter(str(directory / "rows.tfrecord")) as writer:
        for label in range(3):
            example = tf_example_builder.TfExampleBuilder()
            example.add_floats_feature("x", [0.0, 1.0]).add_ints_feature("label", label)
            writer.write(example.serialized_example)
    command = [commands.ROOT / "train.py", "--import=mine.py", f"--experiment={experiment}"]
    command += ["--mode=train", "--model_dir=run", *args]
    if fault:
        command.append(f"--set=task.fault={fault}")
    return Outcome(commands.run(command, cwd=directory), directory)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        (
            "one_hot",
            "ValueError: Argument `output` must have rank (ndim) `target.ndim - 1`",
        ),
        (
            "key",
            "KeyError: The examples passed to `parse` have no key 'lable'. Did yo",
        ),
    ],
)
def test_last_line_says_what_and_where(tmp_path: pathlib.Path, fault: str, answer: str) -> None:
    outcome = run(tmp_path, "mine", fault)
    assert outcome.result.returncode == 1
    assert outcome.lines[-1].startswith(answer)
    assert outcome.place(fault) in outcome.lines[-1]
    assert "The full traceback is in run/log.txt." in outcome.lines
    assert len(outcome.lines) < 20
    assert "tensorflow/python" not in outcome.result.stderr
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Traceback (most recent call last)" in log
    assert "tensorflow/python" in log


def test_all_of_the_traceback_is_shown_to_those_who_ask(tmp_path: pathlib.Path) -> None:
    outcome = run(tmp_path, "mine", "raise", "--verbosity=1")
    assert "tensorflow/python" in outcome.result.stderr
    assert outcome.lines[-1].startswith("RuntimeError: mine is wrong (")
    assert outcome.place("raise") in outcome.lines[-1]


def test_feature_that_no_record_has_is_named(tmp_path: pathlib.Path) -> None:
    outcome = run(tmp_path, "mine", "feature")
    assert outcome.result.returncode == 3
    (line,) = outcome.lines
    assert line.startswith("DataError: The training data can't be used around step 0: ")
    assert "Feature: lable (data type: int64) is required" in line


def test_misspelt_field_in_the_factory_of_a_config_is_an_error_of_config(
    tmp_path: pathlib.Path,
) -> None:
    outcome = run(tmp_path, "misspelt")
    assert outcome.result.returncode == 2
    assert outcome.lines[-1] == (
        "ConfigTypeError: MineConfig has no field 'falt'. Did you mean `fault`? "
        f"({outcome.place('misspelt')}misspelt`)"
    )
    assert "Traceback" not in outcome.result.stderr
