"""Toy experiments for tests that kill training; each has state that is easy to lose."""

import dataclasses
import os
import pathlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite.core import (
    base_task,
    base_trainer,
    exp_factory,
    input_reader,
    task_factory,
    trainer_factory,
)
from official_lite.core import config_definitions as cfg
from official_lite.data import position
from official_lite.modeling import hyperparams
from official_lite.modeling.multitask import base_model, configs, multitask
from official_lite.modeling.optimization import optimizer_factory

FOLDER = "RECORDS"
"""The environment variable that names the directory of the records."""

NUM_FEATURES = 3

_WEIGHTS = {"a": 0.6, "b": 0.3, "c": 0.1}


@dataclasses.dataclass
class NumbersData(cfg.DataConfig):
    """The config of records that are numbers, from one source or from several weighted sources."""

    weights: hyperparams.Config | None = None


@dataclasses.dataclass
class NumbersConfig(cfg.TaskConfig):
    """The config of a task that reads the records of `NumbersData`."""

    train_data: NumbersData = dataclasses.field(default_factory=NumbersData)
    validation_data: NumbersData = dataclasses.field(default_factory=NumbersData)


@dataclasses.dataclass
class GanConfig(NumbersConfig):
    """The config that selects the task with a generator and a critic."""


@dataclasses.dataclass
class TableConfig(NumbersConfig):
    """The config that selects the task with lookup tables."""


@dataclasses.dataclass
class GeneratorDataConfig(NumbersConfig):
    """The config that selects the task whose data are generated."""


@dataclasses.dataclass
class PairConfig(configs.MultiTaskConfig):
    """The config that selects two tasks with shared layers."""


def write_records(folder: pathlib.Path) -> None:
    for index, name in enumerate(_WEIGHTS):
        with tf.io.TFRecordWriter(str(folder / name)) as writer:
            for number in range(100 * index, 100 * index + 50):
                writer.write(str(number).encode())


def _features(number: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.sin(number), tf.cos(number), number / 100], axis=-1)


def _parse(record: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    number = tf.strings.to_number(record)
    x = _features(number)
    return {"x": x, "number": tf.cast(number, tf.int64)}, tf.reduce_sum(x**2, keepdims=True)


def _layers(*, normalized: bool = False) -> list[keras.layers.Layer]:
    norm = [keras.layers.BatchNormalization(momentum=0.9)] if normalized else []
    return [keras.layers.Dense(8, activation="tanh"), *norm, keras.layers.Dropout(0.2)]


def _network(layers: list[keras.layers.Layer], name: str | None = None) -> keras.Model:
    x = inputs = keras.Input((NUM_FEATURES,), name="x")
    for layer in layers:
        x = layer(x)
    numbers = keras.Input((), dtype="int64", name="number")
    return keras.Model({"x": inputs, "number": numbers}, x, name=name)


@task_factory.register_task_cls(NumbersConfig)
class NumbersTask(base_task.Task):
    def build_model(self) -> keras.Model:
        return _network([*_layers(normalized=True), keras.layers.Dense(1, dtype="float32")])

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        mix = input_reader.create_combine_fn(params)
        return input_reader.InputReader(params, combine_fn=mix, parser_fn=_parse).read(
            input_context
        )

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        loss = tf.reduce_mean((model_outputs - labels) ** 2)
        return loss + super().build_losses(labels, model_outputs, aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.MeanAbsoluteError(name="error")]


@task_factory.register_task_cls(GanConfig)
class GanTask(NumbersTask):
    def build_model(self) -> keras.Model:
        return keras.Sequential(
            [keras.Input((4,)), *_layers(normalized=True), keras.layers.Dense(NUM_FEATURES)]
        )

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return []

    def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> dict[str, Any]:
        x = inputs[0]["x"]
        noise = tf.random.stateless_normal([tf.shape(x)[0], 4], [0, 0])
        distance = tf.reduce_mean(model(noise, training=False), 0) - tf.reduce_mean(x, 0)
        return {self.loss: tf.reduce_sum(distance**2)}


@trainer_factory.register_trainer_cls("tests/gan")
class GanTrainer(base_trainer.Trainer):
    """A trainer that trains a critic and a generator, each on its own batch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.critic = keras.Sequential(
            [keras.Input((NUM_FEATURES,)), *_layers(), keras.layers.Dense(1)]
        )
        self.critic_optimizer = optimizer_factory.prepare_optimizer(
            keras.optimizers.Adam(0.01), self.critic
        )
        self.noise = keras.random.SeedGenerator(11)

    def train_step(self, iterator: Any) -> None:
        self.run_step(self._train_critic, self.next_train_inputs(iterator))
        self.run_step(self._train_generator, self.next_train_inputs(iterator))

    def _generate(self, like: tf.Tensor) -> tf.Tensor:
        noise = keras.random.normal([like.shape[0], 4], seed=self.noise)
        return self.model(noise, training=True)

    def _train_critic(self, inputs: Any) -> None:
        self.begin_replica_step()
        real = inputs[0]["x"]
        with tf.GradientTape() as tape:
            judged = self.critic(self._generate(real), training=True)
            loss = tf.reduce_mean(judged - self.critic(real, training=True))
            loss += tf.reduce_mean(self.critic(real) ** 2)
        weights = self.critic.trainable_variables
        self.critic_optimizer.apply(tape.gradient(loss, weights), weights)

    def _train_generator(self, inputs: Any) -> None:
        self.begin_replica_step()
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(self.critic(self._generate(inputs[0]["x"]), training=True))
        weights = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.train_loss.update_state(loss)
        self.global_step.assign_add(1)


@task_factory.register_task_cls(TableConfig)
class TableTask(NumbersTask):
    """A task whose example weights depend on how often, according to a table, each was seen."""

    def build_model(self) -> keras.Model:
        tables = tf.lookup.experimental
        self.times_seen = tables.MutableHashTable(tf.int64, tf.int64, 0)
        self.last_output = tables.DenseHashTable(
            tf.int64,
            tf.float32,
            default_value=0.0,
            empty_key=-1,
            deleted_key=-2,
            initial_num_buckets=128,
        )
        # The value of `sum` depends on the order of all batches.
        self.history = tf.train.Checkpoint(sum=tf.Variable(0, dtype=tf.int64, trainable=False))
        return super().build_model()

    def train_step(
        self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None
    ) -> dict[str, Any]:
        features, labels = inputs
        numbers = features["number"]
        seen = self.times_seen.lookup(numbers)
        with tf.GradientTape() as tape:
            outputs = model(features, training=True)
            errors = (outputs - labels)[:, 0] ** 2 / tf.cast(1 + seen, tf.float32)
            moved = outputs[:, 0] - self.last_output.lookup(numbers)
            loss = tf.reduce_mean(errors) + 0.1 * tf.reduce_mean(moved**2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.times_seen.insert(numbers, seen + 1)
        self.last_output.insert(numbers, outputs[:, 0])
        history = self.history.sum * 31 + tf.reduce_sum(numbers)
        self.history.sum.assign(history % 1_000_003)
        self.process_metrics(metrics, labels, outputs)
        return {self.loss: loss}


@task_factory.register_task_cls(GeneratorDataConfig)
class GeneratorDataTask(NumbersTask):
    """A task that reads from a finite Python generator and can resume at any batch."""

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        count = 50 if params.is_training else 16

        def generate() -> Any:
            yield from np.arange(count, dtype=np.float32)

        begin = position.take() if params.is_training else None
        dataset = tf.data.Dataset.from_generator(
            generate, output_signature=tf.TensorSpec([], tf.float32)
        )
        if params.is_training:
            dataset = dataset.shuffle(20, seed=begin.seed if begin else 0).repeat()
        dataset = dataset.map(lambda number: _parse(tf.strings.as_string(number)))
        dataset = dataset.batch(params.global_batch_size, drop_remainder=params.is_training)
        return dataset.skip(begin.batches_of(input_context)) if begin else dataset


class PairModel(base_model.MultiTaskBaseModel):
    """Models that share all layers but the last."""

    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        shared = _layers(normalized=True)
        return {
            name: _network([*shared, keras.layers.Dense(1)], name=name)
            for name in ("first", "second")
        }


class PairOfTasks(multitask.MultiTask):
    """Two tasks, each with its own data."""

    def build_multitask_model(self) -> PairModel:
        return PairModel()


task_factory.register_task_cls(PairConfig)(PairOfTasks.from_config)


def _data(path: Any, **fields: Any) -> dict[str, NumbersData]:
    common = {"input_path": path, "global_batch_size": 4, **fields}
    return {
        "train_data": NumbersData(is_training=True, shuffle_buffer_size=10, **common),
        "validation_data": NumbersData(is_training=False, seed=1, **common),
    }


def _path_of(name: str) -> str:
    return os.path.join(os.environ.get(FOLDER, ""), name)


def _mixed_data() -> dict[str, NumbersData]:
    """Return mixed sources, whose training data have no seed of their own."""
    paths = {name: _path_of(name) for name in _WEIGHTS}
    return _data(hyperparams.Config(paths), weights=hyperparams.Config(_WEIGHTS))


def _optimizer(**fields: Any) -> cfg.OptimizationConfig:
    return cfg.OptimizationConfig(
        {
            "optimizer": {"type": "adam"},
            "learning_rate": {
                "type": "cosine",
                "cosine": {"initial_learning_rate": 0.01, "decay_steps": 300},
            },
            **fields,
        }
    )


def _trainer(cls: type[cfg.TrainerConfig] = cfg.TrainerConfig, **fields: Any) -> Any:
    common = {
        "train_steps": 300,
        "steps_per_loop": 10,
        "summary_interval": 10,
        # Of these two intervals, neither is a multiple of the other.
        "checkpoint_interval": 15,
        "validation_interval": 20,
        "writers": ["jsonl"],
        "optimizer_config": _optimizer(),
    }
    return cls(**{**common, **fields})


def _runtime(**fields: Any) -> cfg.RuntimeConfig:
    return cfg.RuntimeConfig(
        **{"execution": "graph", "distribution_strategy": "one_device", **fields}
    )


def _best(metric: str) -> dict[str, str]:
    return {
        "best_checkpoint_export_subdir": "best",
        "best_checkpoint_eval_metric": metric,
        "best_checkpoint_metric_comp": "lower",
    }


@exp_factory.register_config_factory("tests/gan")
def gan() -> cfg.ExperimentConfig:
    """Return an experiment with a GAN: two models, two optimizers and two batches per step."""
    return cfg.ExperimentConfig(
        task=GanConfig(**_mixed_data()),
        trainer=_trainer(
            name="tests/gan",
            hooks=[
                {
                    "name": "keras_callback",
                    "callback": "ReduceLROnPlateau",
                    "monitor": "val_loss",
                    "patience": 1,
                    "min_delta": 1.0,
                }
            ],
            optimizer_config=_optimizer(
                learning_rate={"type": "constant", "constant": {"learning_rate": 0.01}}
            ),
        ),
        runtime=_runtime(),
    )


@exp_factory.register_config_factory("tests/table")
def table() -> cfg.ExperimentConfig:
    """Return an experiment whose loss depends on lookup tables."""
    return cfg.ExperimentConfig(
        task=TableConfig(**_data(_path_of("a"))),
        trainer=_trainer(**_best("error")),
        runtime=_runtime(),
    )


@exp_factory.register_config_factory("tests/mixture")
def mixture() -> cfg.ExperimentConfig:
    """Return an experiment with mixed sources that have no seed."""
    return cfg.ExperimentConfig(
        task=NumbersConfig(**_mixed_data()),
        trainer=_trainer(optimizer_config=_optimizer(ema={"average_decay": 0.9}), **_best("error")),
        runtime=_runtime(),
    )


@exp_factory.register_config_factory("tests/interleaved")
def interleaved() -> configs.MultiTaskExperimentConfig:
    """Return an experiment with two interleaved tasks and batch normalization on two replicas."""
    return configs.MultiTaskExperimentConfig(
        task=PairConfig(
            task_routines=(
                configs.TaskRoutine(
                    task_name="first",
                    task_config=NumbersConfig(**_mixed_data()),
                    task_weight=2.0,
                ),
                configs.TaskRoutine(
                    task_name="second", task_config=NumbersConfig(**_data(_path_of("b")))
                ),
            )
        ),
        trainer=_trainer(
            configs.MultiTaskTrainerConfig,
            trainer_type="interleaving",
            optimizer_config=_optimizer(ema={"average_decay": 0.9}),
            **_best("first|error"),
        ),
        runtime=_runtime(distribution_strategy="mirrored", devices=["CPU:0", "CPU:1"]),
        pipeline=cfg.PipelineConfig(build="official_lite.pipeline.multitask_build:MultiTaskBuild"),
    )


@exp_factory.register_config_factory("tests/generated")
def generated() -> cfg.ExperimentConfig:
    """Return an experiment with generated data, bfloat16, gradient accumulation and EMA weights."""
    return cfg.ExperimentConfig(
        task=GeneratorDataConfig(**_data("")),
        trainer=_trainer(
            grad_accum_steps=2,
            optimizer_config=_optimizer(ema={"average_decay": 0.9}),
            **_best("error"),
        ),
        runtime=_runtime(mixed_precision_dtype="bfloat16"),
    )


@exp_factory.register_config_factory("tests/callbacks")
def callbacks() -> cfg.ExperimentConfig:
    """Return an experiment with stateful Keras callbacks and the best checkpoint by a metric."""
    return cfg.ExperimentConfig(
        task=NumbersConfig(**_data(_path_of("a"))),
        trainer=_trainer(
            optimizer_config=_optimizer(
                learning_rate={"type": "constant", "constant": {"learning_rate": 0.01}},
                ema={"average_decay": 0.9},
            ),
            hooks=[
                {
                    "name": "keras_callback",
                    "callback": "ReduceLROnPlateau",
                    "monitor": "val_loss",
                    "factor": 0.8,
                    "patience": 2,
                    "cooldown": 1,
                },
                {
                    "name": "keras_callback",
                    "callback": "EarlyStopping",
                    "monitor": "val_error",
                    "mode": "min",
                    "patience": 100,
                    "restore_best_weights": True,
                },
                {"name": "best_checkpoint", "metric": "error", "direction": "minimize"},
            ],
        ),
        runtime=_runtime(),
    )
