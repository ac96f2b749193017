"""A training that was killed and started anew is, bit for bit, the one that nobody disturbed.

`benchmarks.chaos` compares checkpoints, the records of all writers of files, and best values.
"""

import sys

import pytest
import tensorflow as tf

from benchmarks import chaos
from tests import commands

# With all that has a memory, or draws random numbers.
EXPERIMENT = '''
import keras

from experiments.vision.digits import configs, task
from official_lite import orbit, telemetry
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory


class WholeConfig(configs.DigitsConfig):
    pass


@task_factory.register_task_cls(WholeConfig)
class WholeTask(task.DigitsTask):
    def build_model(self):
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(8, 3, activation="relu"),
                layers.BatchNormalization(),
                layers.SpatialDropout2D(0.1),
                layers.Flatten(),
                layers.Dropout(0.3),
                layers.Dense(10),
            ]
        )


class Counter(orbit.Hook):
    """Has a memory, which is in the checkpoint, and reports it."""

    every_n_steps = 5
    calls = 0

    def after_step(self):
        self.calls += 1
        telemetry.put_scalar("calls", float(self.calls))

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


@exp_factory.register_config_factory("test/whole")
def whole():
    params = configs.digits_cnn()
    params.task = WholeConfig()
    params.trainer.override(
        {
            "train_steps": 120,
            "steps_per_loop": 10,
            # Cuts loops, on all workers at the same steps.
            "summary_interval": 25,
            "checkpoint_interval": 15,
            "validation_interval": 20,
            "writers": ["console", "jsonl", "csv", "tensorboard"],
            "hooks": [
                {"name": "early_stopping", "metric": "accuracy", "direction": "maximize",
                 "patience": 50},
                {"name": "PLUGIN:Counter"},
            ],
        }
    )
    params.trainer.optimizer_config.override({"ema": {"average_decay": 0.9}}, is_strict=False)
    return params
'''

# Two models, two optimizers and two batches a step; a lookup table; mixed sources without a seed.
TWO_MODELS = """
import dataclasses

import keras
import tensorflow as tf

from official_lite.core import base_task, base_trainer, exp_factory, input_reader
from official_lite.core import config_definitions as cfg
from official_lite.core import task_factory, trainer_factory
from official_lite.modeling import hyperparams


@dataclasses.dataclass
class MixedData(cfg.DataConfig):
    weights: hyperparams.Config | None = None


@dataclasses.dataclass
class PairConfig(cfg.TaskConfig):
    train_data: MixedData = dataclasses.field(default_factory=MixedData)
    validation_data: MixedData = dataclasses.field(default_factory=MixedData)


def parse(record):
    number = tf.strings.to_number(record) / 100
    return {"x": tf.stack([number, 1 - number]), "number": tf.strings.to_number(record, tf.int64)}


@task_factory.register_task_cls(PairConfig)
class PairTask(base_task.Task):
    def build_model(self):
        self.last_seen = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
        self.total = tf.train.Checkpoint(seen=tf.Variable(0, dtype=tf.int64, trainable=False))
        return keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(8), keras.layers.Dropout(0.2),
             keras.layers.Dense(2)]
        )

    def build_inputs(self, params, input_context=None):
        mix = input_reader.create_combine_fn(params)
        reader = input_reader.InputReader(params, combine_fn=mix, parser_fn=parse)
        return reader.read(input_context)

    def train_step(self, inputs, model, optimizer, metrics=None):
        weights = model.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs["x"], training=True) - inputs["x"]))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        key = tf.constant([0], tf.int64)
        seen = self.last_seen.lookup(key) * 31 + tf.reduce_sum(inputs["number"])
        self.last_seen.insert(key, seen % 1_000_003)
        self.total.seen.assign_add(tf.reduce_sum(inputs["number"]))
        return {self.loss: loss}

    def validation_step(self, inputs, model, metrics=None):
        return {self.loss: tf.reduce_mean(tf.square(model(inputs["x"]) - inputs["x"]))}


@trainer_factory.register_trainer_cls("pair")
class PairTrainer(base_trainer.Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.critic = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        self.critic_optimizer = keras.optimizers.Adam(0.01)
        self.critic_optimizer.build(self.critic.trainable_variables)

    def train_step(self, iterator):
        self.run_step(self._learn_critic, self.next_train_inputs(iterator))
        self.run_step(self.replica_train_step, self.next_train_inputs(iterator))

    def _learn_critic(self, inputs):
        weights = self.critic.trainable_variables
        with tf.GradientTape() as tape:
            generated = self.model(inputs["x"], training=False)
            loss = tf.reduce_mean(self.critic(inputs["x"]) - self.critic(generated))
            loss += tf.reduce_mean(tf.square(self.critic(inputs["x"])))
        self.critic_optimizer.apply(tape.gradient(loss, weights), weights)


@exp_factory.register_config_factory("test/pair")
def pair():
    paths = hyperparams.Config({"a": "FOLDER/a", "b": "FOLDER/b"})
    weights = hyperparams.Config({"a": 0.7, "b": 0.3})
    data = {"input_path": paths, "weights": weights, "global_batch_size": 4}
    return cfg.ExperimentConfig(
        task=PairConfig(
            train_data=MixedData(is_training=True, shuffle_buffer_size=10, **data),
            validation_data=MixedData(is_training=False, seed=1, **data),
        ),
        trainer=cfg.TrainerConfig(
            name="pair",
            train_steps=400,
            steps_per_loop=20,
            checkpoint_interval=30,
            validation_interval=100,
            writers=["jsonl"],
            hooks=[{"name": "keras_callback", "callback": "ReduceLROnPlateau",
                    "monitor": "val_loss", "patience": 1, "min_delta": 1.0}],
            optimizer_config=cfg.OptimizationConfig(
                {"optimizer": {"type": "adam"},
                 "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}}}
            ),
        ),
    )
"""


@pytest.fixture
def run_chaos(monkeypatch, capsys):
    """`python -m benchmarks.chaos <arguments>` in this process; what it prints.

    The trainings are processes of their own, each with a new seed for hashes.
    """

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["chaos", *arguments])
        monkeypatch.chdir(commands.ROOT)
        code = chaos.main()
        printed = capsys.readouterr().out
        assert code == 0, printed
        return printed

    return run


def _kill_and_compare(
    run_chaos, tmp_path, execution, strategy, *options, flags=(), source=EXPERIMENT, name="whole"
):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(source.replace("PLUGIN", str(plugin)).replace("FOLDER", str(tmp_path)))
    devices = ["--set=runtime.devices=[CPU:0,CPU:1]"] if strategy == "mirrored" else []
    printed = run_chaos(
        *("--runs=1", *options),
        "--",
        f"--experiment=test/{name}",
        "--mode=train_and_eval",
        f"--import={plugin}",
        f"--set=runtime.execution={execution}",
        f"--set=runtime.distribution_strategy={strategy}",
        *devices,
        *flags,
    )
    assert "1 of 1 runs equal the unbroken one, bit for bit" in printed
    assert "0 kills;" not in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("execution", "strategy", "workers", "kills", "flags"),
    [
        pytest.param("graph", "one_device", 1, 1, [], marks=pytest.mark.promise),
        # Twice: what was resumed is resumed once more.
        ("graph", "one_device", 1, 2, ["--noenable_async_checkpointing"]),
        ("xla_loop", "one_device", 1, 1, []),
        ("xla", "mirrored", 1, 1, []),
        pytest.param("graph", "multi_worker_mirrored", 2, 1, [], marks=pytest.mark.promise),
        ("graph", "multi_worker_mirrored", 2, 2, []),
    ],
)
def test_01_killed_at_random_moments(
    run_chaos, execution, strategy, workers, kills, flags, tmp_path
):
    options = [f"--kills={kills}", f"--workers={workers}"]
    _kill_and_compare(run_chaos, tmp_path, execution, strategy, *options, flags=flags)


@pytest.mark.slow
def test_48_one_worker_killed_ends_the_others_and_the_same_command_goes_on(run_chaos, tmp_path):
    options = ("--kills=1", "--workers=2", "--kill_one")
    _kill_and_compare(run_chaos, tmp_path, "graph", "multi_worker_mirrored", *options)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_training_of_two_models_on_mixed_data_with_a_table_ends_like_the_unbroken_one(
    run_chaos, tmp_path
):
    for name, first in (("a", 0), ("b", 100)):
        with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
            for number in range(first, first + 50):
                writer.write(str(number).encode())
    options = {"source": TWO_MODELS, "name": "pair"}
    _kill_and_compare(run_chaos, tmp_path, "graph", "one_device", "--kills=4", **options)
