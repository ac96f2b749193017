"""The experiment under test, whose features are fields of its config or of its task's config."""

import dataclasses
import functools
import os
import pathlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite import orbit
from official_lite.common import distribute_utils, nested_dict
from official_lite.config import epochs
from official_lite.core import (
    base_task,
    base_trainer,
    exp_factory,
    input_reader,
    task_factory,
    train_lib,
    trainer_factory,
)
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays, position
from official_lite.modeling import hyperparams, optimization, performance
from official_lite.modeling.multitask import base_model, configs, multitask
from official_lite.modeling.multitask import train_lib as multitask_lib
from official_lite.modeling.optimization import optimizer_factory
from official_lite.run import runtime
from tests.combinations import oracle
from tests.combinations.dimensions import Row

STOP_STEP = 4
# The second batch of the second evaluation; each evaluation has three batches.
STOP_EVALUATION_BATCH = 5


@dataclasses.dataclass
class ToyConfig(cfg.TaskConfig):
    """The features of a row that belong to the task.

    Attributes:
        folder: The directory of the record files, and of a file that prevents a second stop.
    """

    loss: str = ""
    metrics: str = ""
    network: str = ""
    source: str = ""
    evaluation: str = ""
    stop: str = ""
    folder: str = ""


@dataclasses.dataclass
class MixedDataConfig(cfg.DataConfig):
    """Records of several sources, drawn with weights."""

    weights: hyperparams.FreeConfig | None = None


@keras.saving.register_keras_serializable("tests")
class Known(keras.initializers.Initializer):
    """An initializer that returns the initial value that the oracle uses."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return tf.cast(oracle.initial(self.path, tuple(shape)), dtype or "float32")

    def get_config(self) -> dict[str, Any]:
        return {"path": self.path}


class OwnStatistics(keras.layers.Layer):
    """A layer that subtracts a moving mean, which it updates itself."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False, name="mean"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            mean = tf.cast(tf.reduce_mean(x, axis=0), tf.float32)
            kept = oracle.STATISTICS_DECAY
            self.mean.assign(kept * tf.cast(self.mean.value, tf.float32) + (1.0 - kept) * mean)
        return x - tf.stop_gradient(tf.cast(self.mean.value, x.dtype))


class MeanDistance(keras.metrics.MeanMetricWrapper):
    """A metric without an explicit name."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(_distance, name=name)


def _distance(labels: Any, outputs: Any) -> Any:
    return tf.abs(labels - tf.cast(outputs, tf.float32))


class BiasAndSpread(keras.metrics.Metric):
    """A metric with two results."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)
        self.sums = self.add_variable((3,), initializer="zeros", name="sums")

    def update_state(self, labels: Any, outputs: Any, sample_weight: Any = None) -> None:
        del sample_weight
        errors = tf.cast(outputs, tf.float32) - labels
        count = tf.cast(tf.size(errors), tf.float32)
        sums = [tf.reduce_sum(errors), tf.reduce_sum(errors**2), count]
        self.sums.assign(self.sums + tf.stack(sums))

    def result(self) -> dict[str, Any]:
        return {"bias": self.sums[0] / self.sums[2], "spread": self.sums[1] / self.sums[2]}


def build_metrics(kind: str) -> list[keras.metrics.Metric]:
    metrics: dict[str, Any] = {
        "named": lambda: keras.metrics.MeanAbsoluteError(name="error"),
        "unnamed": MeanDistance,
        "lazy": lambda: keras.metrics.F1Score(average="micro", threshold=oracle.THRESHOLD),
        "dictionary": BiasAndSpread,
        "vector": lambda: keras.metrics.R2Score(class_aggregation=None),
    }
    return [metrics[kind]()]


class Layers:
    """The layers of the models; two tasks share all layers except their heads."""

    def __init__(self, network: str) -> None:
        self.network = network
        self.hidden = keras.layers.Dense(
            oracle.NUM_HIDDEN,
            activation="tanh",
            kernel_initializer=Known("hidden/kernel"),
            name="hidden",
        )
        self.table = keras.layers.Embedding(
            oracle.NUM_IDS, 2, embeddings_initializer=Known("table/embeddings"), name="table"
        )
        others: dict[str, Any] = {
            "batch norm": lambda: keras.layers.BatchNormalization(
                momentum=oracle.STATISTICS_DECAY, epsilon=oracle.NORM_EPSILON, name="norm"
            ),
            "dropout": lambda: keras.layers.Dropout(0.3, seed=7),
            "own statistics": lambda: OwnStatistics(name="statistics"),
        }
        self.other = others[network]() if network in others else None

    def build_model(self, task: str) -> keras.Model:
        inputs: dict[str, Any] = {"x": keras.Input((oracle.NUM_FEATURES,), name="x")}
        x = inputs["x"]
        if self.network == "embedding":
            inputs["ids"] = keras.Input((), dtype="int32", name="ids")
            x = keras.layers.Concatenate()([x, self.table(inputs["ids"])])
        x = self.hidden(x)
        if self.other is not None:
            x = self.other(x)
        head = keras.layers.Dense(
            oracle.NUM_OUTPUTS,
            kernel_initializer=Known(f"head_{task}/kernel"),
            name=f"head_{task}",
        )
        return keras.Model(inputs, head(x), name=f"model_{task}")


@task_factory.register_task_cls(ToyConfig)
class ToyTask(base_task.Task):
    @property
    def label(self) -> str:
        return self.task_config.name or "a"

    def build_model(self, layers: Layers | None = None) -> keras.Model:
        config = self.task_config
        model = (layers or Layers(config.network)).build_model(self.label)
        if self._is_compiled:
            evaluates = config.evaluation != "aggregate_logs"
            metrics = build_metrics(config.metrics) if evaluates else None
            model.compile(loss="mse", metrics=metrics)
        return model

    @property
    def _is_compiled(self) -> bool:
        return self.task_config.loss in ("compiled", "weighted")

    @classmethod
    def create_optimizer(cls, optimizer_config, runtime_config=None, dp_config=None):
        return create_optimizer(optimizer_config, runtime_config)

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        if not params.is_training:
            return self._build_validation_data(params, input_context)
        source = self.task_config.source
        if source in ("records", "mixed records"):
            return self._read_records(params, input_context)
        uneven = source == "uneven"
        count = oracle.NUM_UNEVEN_EXAMPLES if uneven else oracle.NUM_EXAMPLES
        data = oracle.examples(f"{self.label}/train", count)
        if source in ("generator", "uneven"):
            return self._read_one_by_one(data, params, input_context, drops=not uneven)
        return arrays.from_arrays(
            data,
            params.global_batch_size,
            shuffle=False,
            repeat=True,
            drop_remainder=True,
            input_context=input_context,
        ).map(self._as_batch)

    def _build_validation_data(self, params: Any, context: Any) -> tf.data.Dataset:
        data = oracle.examples(f"{self.label}/validation", oracle.NUM_VALIDATION_EXAMPLES)
        dataset = arrays.from_arrays(
            data,
            params.global_batch_size,
            shuffle=False,
            drop_remainder=False,
            input_context=context,
        )
        if self.task_config.stop == "evaluation":
            dataset = dataset.map(self._count_batch)
        return dataset.map(self._as_batch)

    def _count_batch(self, batch: Any) -> Any:
        def count(x: Any) -> Any:
            folder = pathlib.Path(self.task_config.folder)
            seen = folder / "validation_batches"
            seen.write_bytes((seen.read_bytes() if seen.exists() else b"") + b".")
            if seen.stat().st_size >= STOP_EVALUATION_BATCH and not (folder / "stopped").exists():
                (folder / "stopped").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return x

        x = tf.numpy_function(count, [batch["x"]], tf.float32)
        return batch | {"x": tf.ensure_shape(x, batch["x"].shape)}

    def _read_one_by_one(
        self, data: Mapping[str, Any], params: Any, context: Any, *, drops: bool
    ) -> tf.data.Dataset:
        def generate() -> Any:
            for number in range(len(data["x"])):
                yield {name: value[number] for name, value in data.items()}

        signature = {k: tf.TensorSpec(v.shape[1:], v.dtype) for k, v in data.items()}
        size = params.global_batch_size
        size = context.get_per_replica_batch_size(size) if context else size
        begin = position.take()
        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
        dataset = dataset.batch(size, drop_remainder=drops).repeat()
        if context:
            dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        dataset = dataset.skip(begin.batches_of(context) if begin else 0)
        return dataset.map(self._as_batch)

    def _read_records(self, params: Any, context: Any) -> tf.data.Dataset:
        shapes = oracle.examples("shapes", 1)

        def decode(record: Any) -> dict[str, tf.Tensor]:
            kinds = {k: tf.int64 if v.dtype == np.int32 else tf.float32 for k, v in shapes.items()}
            features = {k: tf.io.FixedLenFeature(v.shape[1:], kinds[k]) for k, v in shapes.items()}
            return tf.io.parse_single_example(record, features)

        def parse(decoded: dict[str, tf.Tensor]) -> Any:
            return self._as_batch(decoded | {"ids": tf.cast(decoded["ids"], tf.int32)})

        combine = None
        if self.task_config.source == "mixed records":
            combine = input_reader.create_combine_fn(params)
        reader = input_reader.InputReader(
            params, decoder_fn=decode, parser_fn=parse, combine_fn=combine
        )
        return reader.read(context)

    def _as_batch(self, data: Mapping[str, Any]) -> Any:
        features = {"x": data["x"], "ids": data["ids"]}
        if self.task_config.source == "None":
            features["unused"] = None
        if self.task_config.loss == "weighted":
            return features, data["labels"], data["weights"]
        if self.task_config.loss == "masked":
            return features, {k: data[k] for k in ("labels", "mask", "weights")}
        return features, data["labels"]

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        loss = super().build_losses(labels, model_outputs, aux_losses)
        if self._is_compiled:
            return loss
        is_masked = self.task_config.loss == "masked"
        wanted = labels["labels"] if is_masked else labels
        errors = (tf.cast(model_outputs, tf.float32) - wanted) ** 2
        if is_masked:
            return loss + tf.reduce_sum(errors * labels["mask"]) / tf.reduce_sum(labels["mask"])
        return loss + tf.reduce_mean(errors)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        evaluates = self.task_config.evaluation != "aggregate_logs"
        if (self._is_compiled and evaluates) or not (training or evaluates):
            return []
        return build_metrics(self.task_config.metrics)

    def process_metrics(self, metrics: Any, labels: Any, model_outputs: Any, **kwargs: Any) -> None:
        labels = labels["labels"] if self.task_config.loss == "masked" else labels
        super().process_metrics(metrics, labels, tf.cast(model_outputs, tf.float32), **kwargs)


class AggregatingTask(ToyTask):
    """A task that computes a metric from the outputs of all batches at once."""

    def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> dict[str, Any]:
        logs = super().validation_step(inputs, model, metrics)
        features, labels, _ = base_task.split_batch(inputs, model)
        labels = labels["labels"] if self.task_config.loss == "masked" else labels
        outputs = tf.cast(self.inference_step(features, model), tf.float32)
        return logs | {"differences": outputs - labels}

    def aggregate_logs(self, state: Any, step_logs: Mapping[str, Any]) -> list[Any]:
        return [*(state or []), *(np.asarray(one) for one in step_logs["differences"])]

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> Any:
        del global_step
        return {"median_error": float(np.median(np.abs(np.concatenate(aggregated_logs))))}


class AggregatingConfig(ToyConfig):
    """The config of an `AggregatingTask`."""


task_factory.register_task_cls(AggregatingConfig)(AggregatingTask)


def create_optimizer(
    config: cfg.OptimizationConfig, runtime_config: cfg.RuntimeConfig | None
) -> keras.optimizers.Optimizer:
    """Create the optimizer of the config, or a Keras SGD with `use_ema` if its name is "keras"."""
    sgd = config.optimizer.sgd
    if sgd.name != "keras":
        return base_task.Task.create_optimizer(config, runtime_config)
    optimizer = keras.optimizers.SGD(
        optimization.OptimizerFactory(config).build_learning_rate(),
        momentum=sgd.momentum,
        clipnorm=sgd.clipnorm,
        global_clipnorm=sgd.global_clipnorm,
        use_ema=True,
        ema_momentum=oracle.AVERAGE_DECAY,
    )
    return performance.configure_optimizer(
        optimizer,
        use_float16=runtime_config.mixed_precision_dtype == "float16",
        loss_scale=runtime_config.loss_scale,
    )


@trainer_factory.register_trainer_cls("tests/two_optimizers")
class TwoOptimizersTrainer(base_trainer.Trainer):
    """A trainer whose steps begin with an update by a second optimizer on a separate batch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.config.trainer.optimizer_config.replace(ema=None)
        config = config.replace(optimizer={"sgd": {"name": "SGD"}})
        optimizer = base_task.Task.create_optimizer(config, self.config.runtime)
        self.second_optimizer = optimizer_factory.prepare_optimizer(optimizer, self.model)

    def train_step(self, iterator: Any) -> None:
        self.run_step(self._second_step, self.next_train_inputs(iterator))
        super().train_step(iterator)

    def _second_step(self, inputs: Any) -> None:
        self.begin_replica_step()
        self.task.train_step(inputs, model=self.model, optimizer=self.second_optimizer, metrics=[])


class TwoHeads(base_model.MultiTaskBaseModel):
    def __init__(self, tasks: Mapping[str, ToyTask]) -> None:
        self._tasks = dict(tasks)
        super().__init__()

    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        layers = Layers(next(iter(self._tasks.values())).task_config.network)
        return {name: task.build_model(layers) for name, task in self._tasks.items()}


class ToyTasks(multitask.MultiTask):
    @classmethod
    def create_optimizer(cls, optimizer_config, runtime_config=None, dp_config=None):
        return create_optimizer(optimizer_config, runtime_config)


def _task_config(**fields: Any) -> ToyConfig:
    cls = ToyConfig if fields["evaluation"] == "metrics" else AggregatingConfig
    return cls(
        train_data=cfg.DataConfig(
            global_batch_size=oracle.BATCH_SIZE, is_training=True, shuffle_buffer_size=0
        ),
        validation_data=cfg.DataConfig(
            global_batch_size=oracle.BATCH_SIZE, is_training=False, drop_remainder=False
        ),
        **fields,
    )


@exp_factory.register_config_factory("tests/combinations")
def one_task() -> cfg.ExperimentConfig:
    return cfg.ExperimentConfig()


@exp_factory.register_config_factory("tests/combinations_of_two_tasks")
def two_tasks() -> configs.MultiTaskExperimentConfig:
    return configs.MultiTaskExperimentConfig()


def build_config(row: Row, folder: pathlib.Path) -> Any:
    """Return the config of a row.

    Args:
        row: The features.
        folder: The directory for the record files and the file that prevents a second stop.
    """
    has_two = row["trainer"] in ("joint", "interleaving")
    name = "tests/combinations_of_two_tasks" if has_two else "tests/combinations"
    params = exp_factory.get_exp_config(name)
    fields = {
        "loss": row["loss"],
        "metrics": row["metrics"],
        "network": row["model"],
        "source": row["data"],
        "evaluation": row["evaluation"],
        "stop": row["stop"],
        "folder": str(folder),
    }
    tasks = {name: _task_config(name=name, **fields) for name in oracle.task_names(row)}
    for label, task in tasks.items():
        if row["data"] in ("records", "mixed records"):
            task.train_data = MixedDataConfig(
                {**task.train_data.as_dict(), **_write_records(label, row["data"], folder)}
            )
    if has_two:
        params.task = configs.MultiTaskConfig(
            task_routines=tuple(
                configs.TaskRoutine(
                    task_name=label, task_config=task, task_weight=oracle.TASK_WEIGHTS[label]
                )
                for label, task in tasks.items()
            )
        )
        params.override({"trainer": {"trainer_type": row["trainer"]}})
    else:
        params.task = tasks["a"]
    params.override({"trainer": _trainer_fields(row, folder), "runtime": _runtime_fields(row)})
    params.validate()
    params.lock()
    return params


def _trainer_fields(row: Row, folder: pathlib.Path) -> dict[str, Any]:
    steps, interval = oracle.STEPS, oracle.INTERVAL
    decay: dict[str, Any] = {"decay_steps": steps}
    lengths: dict[str, Any] = {
        "train_steps": steps,
        "checkpoint_interval": interval,
        "validation_interval": interval,
    }
    if row["schedule"] != "steps":
        decay = {"decay_ratio": 1.0}
    if row["schedule"] == "epochs":
        lengths = {
            "train_epochs": steps // interval,
            "checkpoint_every_epochs": 1,
            "validate_every_epochs": 1,
            "steps_per_epoch": interval,
        }
    metric = "a|validation_loss" if len(oracle.task_names(row)) > 1 else "validation_loss"
    hooks: list[Any] = []
    if row["best"] == "hook":
        hooks = [{"name": "best_checkpoint", "metric": metric, "direction": "maximize"}]
    if row["best"] == "callback":
        hooks = [
            {
                "name": "keras_callback",
                "callback": "ModelCheckpoint",
                "filepath": str(folder / "best.weights.h5"),
                "monitor": "val_loss",
                "mode": "max",
                "save_best_only": True,
                "save_weights_only": True,
            }
        ]
    exports = row["best"] == "exporter"
    clipping = {"none": {}, "norm": {"clipnorm": oracle.CLIP_NORM}}.get(
        row["clipping"], {"global_clipnorm": oracle.CLIP_NORM}
    )
    sgd = {"momentum": oracle.MOMENTUM, **clipping}
    if row["average"] == "keras":
        sgd["name"] = "keras"
    optimizer: dict[str, Any] = {
        "optimizer": {"type": "sgd", "sgd": sgd},
        "learning_rate": {
            "type": "cosine",
            "cosine": {"initial_learning_rate": oracle.LEARNING_RATE, **decay},
        },
    }
    if row["average"] in ("ours", "all"):
        only = row["average"] == "ours"
        optimizer["ema"] = {
            "average_decay": oracle.AVERAGE_DECAY,
            "trainable_weights_only": only,
        }
    return {
        **lengths,
        "steps_per_loop": interval,
        "summary_interval": interval,
        "grad_accum_steps": row["accumulation"],
        "virtual_replicas": row["virtual"],
        "freeze": ["^hidden/"] if row["model"] == "frozen" else [],
        "writers": ["jsonl"],
        "hooks": hooks,
        # "higher" selects the worst state, which is never the last, so best and latest differ.
        "best_checkpoint_export_subdir": "best" if exports else "",
        "best_checkpoint_eval_metric": metric if exports else "",
        "best_checkpoint_metric_comp": "higher",
        "optimizer_config": optimizer,
        **({"name": "tests/two_optimizers"} if row["trainer"] == "two optimizers" else {}),
    }


def _runtime_fields(row: Row) -> dict[str, Any]:
    precision = None if row["precision"] == "float32" else row["precision"]
    fields = {
        "execution": row["execution"],
        "mixed_precision_dtype": precision,
        # A dynamic loss scale may skip the first updates.
        "loss_scale": 256.0 if precision == "float16" else None,
    }
    if row["replicas"] == 1:
        return {**fields, "distribution_strategy": "off"}
    return {**fields, "distribution_strategy": "mirrored", "devices": ["CPU:0", "CPU:1"]}


def _write_records(label: str, source: str, folder: pathlib.Path) -> dict[str, Any]:
    """Write the training data of a task to one or two files, and return its data config fields."""
    data = oracle.examples(f"{label}/train", oracle.NUM_EXAMPLES)
    half = oracle.NUM_EXAMPLES // 2
    parts = {"all": slice(None)}
    if source == "mixed records":
        parts = {"first": slice(half), "second": slice(half, None)}
    paths = {name: str(folder / f"{label}_{name}.tfrecord") for name in parts}
    for name, rows in parts.items():
        if pathlib.Path(paths[name]).exists():
            continue
        with tf.io.TFRecordWriter(paths[name]) as writer:
            for values in zip(*(value[rows] for value in data.values()), strict=True):
                writer.write(_as_example(dict(zip(data, values, strict=True))))
    if source == "records":
        return {"input_path": paths["all"]}
    return {"input_path": paths, "weights": {"first": 0.5, "second": 0.5}}


def _as_example(values: Mapping[str, Any]) -> bytes:
    features = {}
    for name, value in values.items():
        flat = np.ravel(value)
        if flat.dtype == np.int32:
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=flat))
        else:
            feature = tf.train.Feature(float_list=tf.train.FloatList(value=flat))
        features[name] = feature
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


class Stop(orbit.Hook):
    """A hook that sends a signal to its own process, once, in the middle of training."""

    every_n_steps = 2

    def __init__(self, kind: str, folder: pathlib.Path) -> None:
        self._kind = kind
        self._noted = folder / "stopped"

    def after_step(self) -> None:
        if self.controller.step != STOP_STEP or self._noted.exists():
            return
        if self._kind in ("SIGKILL", "SIGTERM"):
            self._noted.touch()
            os.kill(os.getpid(), getattr(signal, self._kind))


class Recorder(orbit.Hook):
    """A hook that records evaluation results, including vectors, which no writer saves."""

    def __init__(self) -> None:
        self.evaluations: dict[int, Mapping[str, Any]] = {}

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        self.evaluations[self.controller.step] = nested_dict.flatten_nested_dict(logs, "/")


def build_strategy(params: Any) -> tf.distribute.Strategy:
    return distribute_utils.get_distribution_strategy(
        params.runtime.distribution_strategy, devices=params.runtime.devices
    )


def run(row: Row, folder: pathlib.Path, hooks: Sequence[orbit.Hook] = ()) -> Any:
    """Run a row in this process, with `run` in `folder` as model directory; return the model."""
    folder.mkdir(parents=True, exist_ok=True)
    params = build_config(row, folder)
    if len(oracle.task_names(row)) > 1:
        # `run_experiment` resolves the config of a single task itself.
        params = epochs.resolve(params)
    hooks = [Stop(row["stop"], folder), *hooks]
    strategy, mode, model_dir = build_strategy(params), "train_and_eval", str(folder / "run")
    if len(oracle.task_names(row)) == 1:
        with strategy.scope():
            task = task_factory.get_task(params.task)
        return train_lib.run_experiment(strategy, task, mode, params, model_dir, hooks=hooks)[0]
    return train_lib.execute(
        functools.partial(_build_runner, params, strategy, model_dir, hooks, mode),
        strategy=strategy,
        params=params,
        mode=mode,
        model_dir=model_dir,
    )[0]


def evaluate(row: Row, folder: pathlib.Path, checkpoint: str) -> Mapping[str, Any]:
    """Evaluate a checkpoint, with `again` in `folder` as model directory; return the results."""
    row = row | {"stop": "never"}
    params, recorder, model_dir = build_config(row, folder), Recorder(), str(folder / "again")
    # Do not save a best checkpoint in this evaluation.
    params = params.replace(
        trainer={
            "hooks": [],
            "best_checkpoint_export_subdir": "",
            "best_checkpoint_eval_metric": "",
        }
    )
    strategy = build_strategy(params)
    if len(oracle.task_names(row)) == 1:
        params = params.replace(task={"init_checkpoint": checkpoint})
        with strategy.scope():
            task = task_factory.get_task(params.task)
        train_lib.run_experiment(strategy, task, "eval", params, model_dir, hooks=[recorder])
    else:
        # Multi-task runs do not read `init_checkpoint`, so restore the checkpoint here.
        params = epochs.resolve(params)
        runner = _build_runner(params, strategy, model_dir, [recorder], "eval", restore=False)
        runner.controller.restore_checkpoint(checkpoint)
        with strategy.scope():
            runner.evaluate()
        runner.close()
    (found,) = recorder.evaluations.values()
    return found


def _build_runner(
    params: Any,
    strategy: tf.distribute.Strategy,
    model_dir: str,
    hooks: Sequence[orbit.Hook],
    mode: str,
    **kwargs: Any,
) -> train_lib.OrbitExperimentRunner:
    with strategy.scope(), runtime.seed_and_precision(params.runtime):
        tasks = ToyTasks.from_config(params.task)
        model = TwoHeads(tasks.tasks)
        return multitask_lib.create_runner(
            distribution_strategy=strategy,
            task=tasks,
            model=model,
            mode=mode,
            params=params,
            model_dir=model_dir,
            hooks=hooks,
            **kwargs,
        )


def read_batches(row: Row, folder: pathlib.Path) -> dict[str, Iterator[dict[str, Any]]]:
    """Return the batches of each task, in the order in which its data source draws them."""
    params = build_config(row, folder)
    routines = [*getattr(params.task, "task_routines", ())]
    tasks = [one.task_config for one in routines] or [params.task]

    def read(config: ToyConfig) -> Iterator[dict[str, Any]]:
        # With a masked loss, the batches contain labels, masks and weights.
        task = ToyTask(config.replace(loss="masked"))
        count = row["virtual"] or 1
        contexts = [tf.distribute.InputContext(count, number, count) for number in range(count)]
        parts = []
        for context in contexts:
            with position.begin_at(0, params.runtime.seed):
                dataset = task.build_inputs(config.train_data, context if count > 1 else None)
            parts.append(dataset.as_numpy_iterator())
        for batches in zip(*parts, strict=False):
            examples = [{**features, **labels} for features, labels in batches]
            yield {k: np.concatenate([one[k] for one in examples]) for k in examples[0]}

    return {name: read(one) for name, one in zip(oracle.task_names(row), tasks, strict=True)}


def weights_of(model: Any) -> dict[str, Any]:
    """Return the weights of a model, by path."""
    numbers = (v for v in model.variables if "seed_generator" not in v.path)
    return {v.path: np.asarray(v.value) for v in numbers}
