"""Tests of runs with `--mode=predict`, and of the files that they write."""

import dataclasses
import json
import os
import pathlib
import signal
from typing import Any, ClassVar

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task, input_reader, prediction_run, predictor, train_lib
from official_lite.core import config_definitions as cfg
from official_lite.modeling.hyperparams import base_config
from official_lite.run import model_dir_lock
from tests.line_experiment import short_experiment

NUM_ROWS = 53


@dataclasses.dataclass
class ClassesConfig(cfg.TaskConfig):
    has_labels: bool = True
    is_built: bool = True
    noise: float = 0.0


class Noise(keras.layers.Layer):
    """A layer that adds random noise, also in inference."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self._scale = scale
        self._seeds = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        return x + self._scale * keras.random.normal(tf.shape(x), seed=self._seeds)


def _features() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(NUM_ROWS, 4)).astype(np.float32)


@base_config.bind(ClassesConfig)
class ClassesTask(base_task.Task):
    """A classification task whose last batch is partial."""

    # The row at which the process sends itself a SIGTERM.
    stop_at = -1

    def build_model(self) -> keras.Model:
        layers = [keras.layers.Dense(3, "softmax", name="classes")]
        if self.task_config.noise:
            layers.insert(0, Noise(self.task_config.noise))
        if self.task_config.is_built:
            layers.insert(0, keras.Input((4,)))
        return keras.Sequential(layers)

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        labels = np.arange(NUM_ROWS) % 3
        data = (_features(), labels) if self.task_config.has_labels else _features()
        dataset = input_reader.from_arrays(data, params, input_context)
        return dataset.map(self._stop) if self.stop_at >= 0 else dataset

    def _stop(self, features: Any, labels: Any) -> Any:
        def stop(values: np.ndarray) -> np.ndarray:
            if (values == _features()[self.stop_at]).all(axis=1).any():
                os.kill(os.getpid(), signal.SIGTERM)
            return values

        return tf.ensure_shape(tf.numpy_function(stop, [features], tf.float32), [None, 4]), labels

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        losses = keras.losses.sparse_categorical_crossentropy(labels, model_outputs)
        return tf.reduce_mean(losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def _experiment(output_dir: pathlib.Path | str = "predictions", **overrides) -> Any:
    params = short_experiment(
        ClassesConfig,
        trainer={
            "train_steps": 4,
            "steps_per_loop": 2,
            "checkpoint_interval": 2,
            "validation_interval": 2,
            "best_checkpoint_export_subdir": "best",
            "best_checkpoint_eval_metric": "validation_loss",
            # The first evaluation has a lower loss than the second evaluation.
            "best_checkpoint_metric_comp": "lower",
            "writers": [],
            "optimizer_config": {"learning_rate": {"constant": {"learning_rate": 30.0}}},
        },
        runtime={"execution": "graph"},
        prediction={"output_dir": str(output_dir), "rows_per_shard": 10},
    )
    params.override(overrides)
    return params


def _run(params, mode: str, model_dir, strategy=None, task_cls=ClassesTask) -> tuple[Any, Any]:
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        task = task_cls(params.task)
    return train_lib.run_experiment(strategy, task, mode, params, str(model_dir))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> pathlib.Path:
    """Train a run and return its model directory, which predictions only read."""
    model_dir = tmp_path_factory.mktemp("trained")
    _run(_experiment(), "train_and_eval", model_dir)
    return model_dir


def _rows(directory: pathlib.Path) -> list[dict[str, Any]]:
    paths = sorted(directory.glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def _contents(directory: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("predictions-*")}


def test_every_input_row_is_predicted_once_and_in_input_order(trained, tmp_path) -> None:
    model, counts = _run(_experiment(tmp_path), "predict", trained)
    assert (counts["rows"], counts["shards"], counts["new_rows"]) == (NUM_ROWS, 6, NUM_ROWS)
    rows = _rows(tmp_path)
    assert [row["index"] for row in rows] == list(range(NUM_ROWS))
    expected = model.predict(_features(), verbose=0)
    np.testing.assert_allclose([row["output"] for row in rows], expected, atol=1e-6)
    assert [row["class"] for row in rows] == expected.argmax(axis=1).tolist()
    np.testing.assert_allclose([row["probability"] for row in rows], expected.max(axis=1), 1e-5)


class CompiledTask(ClassesTask):
    """A task whose model brings its loss and its metrics, as for `fit`."""

    compiled: ClassVar[dict[str, Any]] = {}

    def build_model(self) -> keras.Model:
        model = super().build_model()
        model.compile(**self.compiled)
        return model

    build_losses = base_task.Task.build_losses
    build_metrics = base_task.Task.build_metrics


@pytest.mark.parametrize(
    "compiled",
    [
        lambda: {"loss": keras.losses.SparseCategoricalCrossentropy(), "metrics": ["accuracy"]},
        lambda: {"loss": keras.losses.CategoricalCrossentropy()},
        lambda: {"loss": "categorical_crossentropy"},
        lambda: {"loss": [keras.losses.categorical_crossentropy]},
        # Keras chooses the binary or a categorical crossentropy by the shapes.
        lambda: {"loss": "crossentropy"},
        lambda: {"loss": "mse", "metrics": [keras.metrics.SparseCategoricalAccuracy()]},
        lambda: {"weighted_metrics": ["sparse_categorical_accuracy"]},
    ],
    ids=["sparse", "categorical", "name", "function", "by shape", "metric", "metric name"],
)
def test_prediction_of_a_model_compiled_for_classes_has_a_class_column(
    trained, tmp_path, compiled
) -> None:
    task_cls = type("CompiledTask", (CompiledTask,), {"compiled": compiled()})
    model, _ = _run(_experiment(tmp_path), "predict", trained, task_cls=task_cls)
    expected = model.predict(_features(), verbose=0).argmax(axis=1).tolist()
    assert [row["class"] for row in _rows(tmp_path)] == expected


def test_prediction_of_a_model_compiled_for_several_labels_has_no_class_column(
    trained, tmp_path
) -> None:
    compiled = {"loss": "binary_crossentropy", "metrics": ["accuracy"]}
    task_cls = type("CompiledTask", (CompiledTask,), {"compiled": compiled})
    _run(_experiment(tmp_path), "predict", trained, task_cls=task_cls)
    assert all("class" not in row for row in _rows(tmp_path))


def test_prediction_run_writes_run_predict_json_and_leaves_run_json_unchanged(
    trained, tmp_path
) -> None:
    before = (trained / "run.json").read_bytes()
    _run(_experiment(tmp_path), "predict", trained)
    record = json.loads((trained / "run.predict.json").read_text())
    assert record["status"] == "done"
    assert record["predictions"]["rows"] == NUM_ROWS
    assert record["predictions"]["directory"] == str(tmp_path)
    assert (trained / "run.json").read_bytes() == before
    assert not list(trained.glob("*tfevents*predict*"))


def test_two_replicas_predict_the_same_rows_in_the_same_order_as_one_replica(
    trained, tmp_path, two_replicas
) -> None:
    _run(_experiment(tmp_path / "one"), "predict", trained)
    _run(_experiment(tmp_path / "two"), "predict", trained, two_replicas)
    one, two = _rows(tmp_path / "one"), _rows(tmp_path / "two")
    assert [row["index"] for row in two] == list(range(NUM_ROWS))
    for name in ("output", "probability", "class"):
        np.testing.assert_allclose(
            [row[name] for row in one], [row[name] for row in two], atol=1e-6
        )


class PrefixTask(ClassesTask):
    """A task whose predictions have as many columns as the first label of the batch says."""

    def build_predictions(self, features: Any, labels: Any, outputs: Any) -> dict[str, Any]:
        return {"prefix": features[:, : labels[0] + 1]}


def test_replicas_may_predict_rows_of_different_lengths_also_after_a_resume(
    trained, tmp_path, two_replicas
) -> None:
    one = _experiment(tmp_path / "one", task={"validation_data": {"global_batch_size": 4}})
    _run(one, "predict", trained, task_cls=PrefixTask)
    _run(_experiment(tmp_path / "two"), "predict", trained, two_replicas, PrefixTask)
    assert _rows(tmp_path / "two") == _rows(tmp_path / "one")
    assert {len(row["prefix"]) for row in _rows(tmp_path / "two")} == {1, 2, 3}

    class Stopping(PrefixTask):
        stop_at = 30

    resumed = _experiment(tmp_path / "resumed")
    with pytest.raises(errors.PreemptedError):
        _run(resumed, "predict", trained, two_replicas, Stopping)
    assert 0 < len(_contents(tmp_path / "resumed")) < 6
    _run(resumed, "predict", trained, two_replicas, PrefixTask)
    assert _contents(tmp_path / "resumed") == _contents(tmp_path / "two")


@pytest.mark.sample(1)
@pytest.mark.parametrize("execution", ["graph", pytest.param("xla", marks=pytest.mark.slow)])
@pytest.mark.parametrize("replicas", [1, 2])
def test_prediction_stopped_by_a_signal_resumes_and_writes_identical_files(
    execution: str, replicas: int, trained, tmp_path, two_replicas
) -> None:
    strategy = two_replicas if replicas == 2 else None
    overrides = {"runtime": {"execution": execution}, "prediction": {"format": "parquet"}}
    noise = {"noise": 0.5}
    _run(_experiment(tmp_path / "unbroken", task=noise, **overrides), "predict", trained, strategy)
    params = _experiment(tmp_path / "resumed", task=noise, **overrides)

    class Stopping(ClassesTask):
        stop_at = 30

    with pytest.raises(errors.PreemptedError, match="Start the same command again"):
        _run(params, "predict", trained, strategy, Stopping)
    assert json.loads((trained / "run.predict.json").read_text())["status"] == "preempted"
    done = len(_contents(tmp_path / "resumed"))
    assert 0 < done < 6
    _, counts = _run(params, "predict", trained, strategy)
    assert counts["new_rows"] == NUM_ROWS - 10 * done
    assert _contents(tmp_path / "resumed") == _contents(tmp_path / "unbroken")
    names = sorted(_contents(tmp_path / "resumed"))
    tables = [pq.read_table(tmp_path / "resumed" / name) for name in names]
    assert pa.concat_tables(tables)["index"].to_pylist() == list(range(NUM_ROWS))


class RecurrentTask(ClassesTask):
    """A task whose model carries states from batch to batch; all batches have 8 rows."""

    def build_model(self) -> keras.Model:
        inputs = keras.Input((4,), batch_size=8)
        steps = keras.layers.Reshape((2, 2))(inputs)
        states = keras.layers.SimpleRNN(3, stateful=True)(steps)
        return keras.Model(inputs, keras.layers.Dense(3, "softmax")(states))

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return super().build_inputs(params, input_context).take(6)


def test_resumed_prediction_with_a_stateful_model_writes_the_files_of_an_uninterrupted_one(
    tmp_path,
) -> None:
    slow = {"learning_rate": {"constant": {"learning_rate": 0.1}}}
    overrides = {"trainer": {"optimizer_config": slow}}
    _run(_experiment(**overrides), "train", tmp_path / "run", task_cls=RecurrentTask)
    params = _experiment(tmp_path / "unbroken", **overrides)
    _run(params, "predict", tmp_path / "run", task_cls=RecurrentTask)
    params = _experiment(tmp_path / "resumed", **overrides)

    class Stopping(RecurrentTask):
        stop_at = 30

    with pytest.raises(errors.PreemptedError):
        _run(params, "predict", tmp_path / "run", task_cls=Stopping)
    assert 0 < len(_contents(tmp_path / "resumed")) < 5
    _run(params, "predict", tmp_path / "run", task_cls=RecurrentTask)
    assert _contents(tmp_path / "resumed") == _contents(tmp_path / "unbroken")


class EagerOnlyTask(ClassesTask):
    """A task whose prediction step can't be traced."""

    def build_predictions(self, features: Any, labels: Any, outputs: Any) -> dict[str, tf.Tensor]:
        outputs.numpy()
        return super().build_predictions(features, labels, outputs)


class RememberingTask(ClassesTask):
    """A task that keeps the sum of all outputs in an attribute."""

    total: Any = 0.0

    def build_predictions(self, features: Any, labels: Any, outputs: Any) -> dict[str, tf.Tensor]:
        self.total += tf.reduce_sum(outputs)
        predictions = super().build_predictions(features, labels, outputs)
        return predictions | {"total": tf.fill(tf.shape(outputs)[:1], self.total)}


class TableTask(ClassesTask):
    """A task that counts the batches in a lookup table."""

    def build_model(self) -> keras.Model:
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
        return super().build_model()

    def build_predictions(self, features: Any, labels: Any, outputs: Any) -> dict[str, tf.Tensor]:
        key = tf.constant([0], tf.int64)
        count = self.table.lookup(key)
        self.table.insert(key, count + 1)
        predictions = super().build_predictions(features, labels, outputs)
        return predictions | {"count": tf.repeat(count, tf.shape(outputs)[0])}


@pytest.mark.usefixtures("log_as_train_py_does")
@pytest.mark.parametrize(
    ("task_cls", "execution", "repeats"),
    [
        (ClassesTask, "eager", False),
        (EagerOnlyTask, "eager", True),
        (RememberingTask, "eager", True),
        (TableTask, "eager", True),
        (TableTask, "graph", True),
    ],
)
def test_resumed_prediction_repeats_earlier_batches_only_if_a_step_may_depend_on_them(
    trained, tmp_path, caplog, task_cls, execution, repeats
) -> None:
    class Stopping(task_cls):
        stop_at = 30

    runtime = {"execution": execution}
    unbroken = _experiment(tmp_path / "unbroken", runtime=runtime)
    _run(unbroken, "predict", trained, task_cls=task_cls)
    resumed = _experiment(tmp_path / "resumed", runtime=runtime)
    with pytest.raises(errors.PreemptedError):
        _run(resumed, "predict", trained, task_cls=Stopping)
    caplog.clear()
    _run(resumed, "predict", trained, task_cls=task_cls)
    assert ("are predicted again" in caplog.text) is repeats
    assert _contents(tmp_path / "resumed") == _contents(tmp_path / "unbroken")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"task": {"validation_data": {"global_batch_size": 4}}}, "data.global_batch_size: 8 -> 4"),
        ({"runtime": {"seed": 3}}, "runtime.seed: 0 -> 3"),
        ({"prediction": {"rows_per_shard": 7}}, "prediction.rows_per_shard: 10 -> 7"),
        ({"prediction": {"checkpoint": "best"}}, "weights: ckpt-4, .* -> best_ckpt-2, "),
    ],
)
def test_predicting_with_a_changed_config_raises_and_keeps_the_earlier_predictions(
    overrides, field: str, predicted, tmp_path
) -> None:
    model_dir, output_dir = predicted
    before = _contents(output_dir)
    with pytest.raises(errors.ConfigValueError, match=field):
        _run(_experiment(output_dir, **overrides), "predict", model_dir)
    assert _contents(output_dir) == before


@pytest.fixture(scope="module")
def predicted(trained, tmp_path_factory) -> tuple[pathlib.Path, pathlib.Path]:
    """Return a model directory and the directory of its complete predictions."""
    output_dir = tmp_path_factory.mktemp("predictions")
    _run(_experiment(output_dir), "predict", trained)
    return trained, output_dir


def test_complete_predictions_are_not_written_again(predicted) -> None:
    model_dir, output_dir = predicted
    times = [path.stat().st_mtime_ns for path in sorted(output_dir.glob("predictions-*"))]
    _, counts = _run(_experiment(output_dir), "predict", model_dir)
    assert (counts["rows"], counts["new_rows"]) == (NUM_ROWS, 0)
    now = [path.stat().st_mtime_ns for path in sorted(output_dir.glob("predictions-*"))]
    assert now == times


def test_predicting_into_a_locked_output_directory_raises(predicted) -> None:
    model_dir, output_dir = predicted
    with (
        model_dir_lock.ModelDirLock(str(output_dir)),
        pytest.raises(errors.ModelDirBusyError, match=r"predicting in .*`prediction.output_dir`"),
    ):
        _run(_experiment(output_dir), "predict", model_dir)


def test_prediction_checkpoint_selects_latest_best_or_init_checkpoint_weights(
    predicted, tmp_path
) -> None:
    model_dir, latest_dir = predicted
    _run(_experiment(tmp_path / "best", prediction={"checkpoint": "best"}), "predict", model_dir)
    init = {"init_checkpoint": str(model_dir / "best")}
    params = _experiment(tmp_path / "init", task=init, prediction={"checkpoint": "init"})
    _run(params, "predict", model_dir)
    _run(_experiment(tmp_path / "other", task=init), "predict", tmp_path / "new")
    best = _contents(tmp_path / "best")
    weights = [
        json.loads((path / "_progress.json").read_text())["made_from"]["weights"].split(",")[0]
        for path in (latest_dir, tmp_path / "best", tmp_path / "init")
    ]
    assert weights == ["ckpt-4", "best_ckpt-2", "best_ckpt-2"]
    assert best != _contents(latest_dir)
    assert best == _contents(tmp_path / "init") == _contents(tmp_path / "other")


@pytest.mark.parametrize(
    "column",
    [
        np.array([b"a\0b", "\u00e9".encode(), b""], object),
        np.array([True, False, True]),
        np.ones((3, 2), tf.bfloat16.as_numpy_dtype),
        np.arange(3, dtype=np.float16),
    ],
    ids=["text", "bool", "bfloat16", "float16"],
)
def test_columns_gathered_from_workers_keep_their_dtype_and_worker_order(column) -> None:
    first = {"name": column, "id": np.arange(3)}
    second = {"id": np.array([], np.int64), "name": column[:0]}
    third = {"id": np.arange(1), "name": column[2:]}
    numbers = np.concatenate([predictor.pack(part) for part in (first, second, third)])
    (joined,) = predictor.joined(predictor.unpack(numbers, second, 3))
    for name, found in joined.items():
        assert found.tolist() == [*first[name].tolist(), *third[name].tolist()]
        assert found.dtype == first[name].dtype


def test_predicting_with_parameter_servers_raises_before_anything_is_written(tmp_path) -> None:
    runtime = {"distribution_strategy": "parameter_server"}
    params = _experiment(tmp_path / "output", runtime=runtime)
    with pytest.raises(errors.ConfigValueError, match=r"does not support .*parameter_server"):
        _run(params, "predict", tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("log_as_train_py_does")
def test_predictions_can_use_a_best_checkpoint_kept_by_a_hook(tmp_path, caplog) -> None:
    no_exporter = {"best_checkpoint_export_subdir": "", "best_checkpoint_eval_metric": ""}
    hook = {"name": "best_checkpoint", "metric": "validation_loss", "directory": "kept"}
    params = _experiment(
        tmp_path / "output",
        trainer={**no_exporter, "hooks": [hook]},
        prediction={"checkpoint": "best"},
    )
    with pytest.raises(errors.CheckpointError, match=r"There is no best checkpoint in .*/run\."):
        _run(params, "predict", tmp_path / "run")
    params.override({"trainer": {"writers": ["console"]}})
    _run(params, "train_and_eval", tmp_path / "run")
    assert f"official_lite.tools export {tmp_path}/run/kept" in caplog.text
    params.override({"trainer": {"writers": []}})
    _run(params, "predict", tmp_path / "run")
    progress = json.loads((tmp_path / "output" / "_progress.json").read_text())
    assert progress["made_from"]["weights"].startswith("best_ckpt-2,")
    params.override({"trainer": {"hooks": []}})
    with pytest.raises(errors.ConfigValueError, match="the run keeps no best checkpoint"):
        _run(params, "predict", tmp_path / "run")


def test_predictions_do_not_depend_on_labels_or_on_the_time_at_which_the_model_is_built(
    predicted, tmp_path
) -> None:
    model_dir, output_dir = predicted
    task = {"is_built": False, "has_labels": False}
    _run(_experiment(tmp_path, task=task), "predict", model_dir)
    assert _contents(tmp_path) == _contents(output_dir)


class NamesTask(ClassesTask):
    """A task that predicts text."""

    def build_predictions(self, features: Any, labels: Any, outputs: Any) -> dict[str, tf.Tensor]:
        names = tf.strings.join(["row", tf.strings.as_string(labels)], " ")
        return {"name": names, "is_right": tf.argmax(outputs, -1) == tf.cast(labels, tf.int64)}


def test_build_predictions_of_a_task_selects_the_predicted_columns(trained, tmp_path) -> None:
    _run(_experiment(tmp_path), "predict", trained, task_cls=NamesTask)
    rows = _rows(tmp_path)
    assert list(rows[0]) == ["index", "name", "is_right"]
    assert [row["name"] for row in rows[:4]] == ["row 0", "row 1", "row 2", "row 0"]


def test_predictions_that_xla_cannot_compile_are_computed_without_xla_and_a_warning_says_so(
    trained, tmp_path, caplog
) -> None:
    params = _experiment(tmp_path, runtime={"execution": "xla"})
    _run(params, "predict", trained, task_cls=NamesTask)
    assert [row["name"] for row in _rows(tmp_path)] == [f"row {i % 3}" for i in range(NUM_ROWS)]
    assert caplog.text.count("Predicting without XLA") == 1


def test_damaged_input_in_xla_mode_raises_without_a_warning_about_compilation(
    trained, tmp_path, caplog
) -> None:
    class Bad(ClassesTask):
        def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
            def check(number: tf.Tensor, batch: Any) -> Any:
                limit = tf.constant(3, tf.int64)
                with tf.control_dependencies([tf.debugging.assert_less(number, limit, "bad")]):
                    return tf.nest.map_structure(tf.identity, batch)

            return super().build_inputs(params, input_context).enumerate().map(check)

    params = _experiment(tmp_path, runtime={"execution": "xla"})
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        _run(params, "predict", trained, task_cls=Bad)
    assert "Predicting without XLA" not in caplog.text


@pytest.mark.parametrize("wrong", [lambda x: {"x": x[1:]}, lambda x: x])
def test_error_for_wrong_predictions_names_build_predictions_if_the_task_defines_it(
    trained, tmp_path, wrong
) -> None:
    class Task(ClassesTask):
        def build_predictions(self, features, labels, outputs) -> dict[str, tf.Tensor]:
            return wrong(outputs)

    with pytest.raises(errors.ConfigError, match=r"Task\.build_predictions` \(.*test_prediction"):
        _run(_experiment(tmp_path), "predict", trained, task_cls=Task)


def test_predict_step_that_drops_rows_raises(trained, tmp_path) -> None:
    class Losing(ClassesTask):
        def predict_step(self, inputs, model) -> dict[str, tf.Tensor]:
            return {"x": super().predict_step(inputs, model)["output"][1:]}

    with pytest.raises(errors.ConfigValueError, match="7 rows as 'x' for a batch of 8 examples"):
        _run(_experiment(tmp_path), "predict", trained, task_cls=Losing)


class FilesTask(ClassesTask):
    """A task that reads row numbers from TFRecord files."""

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        def parse(record: tf.Tensor) -> Any:
            number = tf.strings.to_number(record, tf.int32)
            return tf.fill([4], tf.cast(number, tf.float32)), number

        return input_reader.InputReader(params, parser_fn=parse).read(input_context)

    def build_predictions(self, features: Any, labels: Any, outputs: Any) -> dict[str, Any]:
        return {"number": labels}


def test_predicted_rows_of_several_files_are_in_the_order_of_the_files(trained, tmp_path) -> None:
    for file in range(3):
        with tf.io.TFRecordWriter(str(tmp_path / f"{file}.tfrecord")) as writer:
            for row in range(10):
                writer.write(str(10 * file + row))
    data = {"input_path": f"{tmp_path}/*.tfrecord", "cycle_length": 3}
    params = _experiment(tmp_path / "out", task={"validation_data": data})
    _run(params, "predict", trained, task_cls=FilesTask)
    assert [row["number"] for row in _rows(tmp_path / "out")] == list(range(30))


def _describe(**task: Any) -> dict[str, Any]:
    return prediction_run.describe_source(_experiment(task=task), None)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return sorted(name for name in before | now if before.get(name) != now.get(name))


def test_prediction_provenance_includes_init_checkpoint_modules_but_not_the_train_data_seed() -> (
    None
):
    before = _describe()
    assert _differences(before, _describe(train_data={"seed": 1})) == []
    assert _differences(before, _describe(init_checkpoint_modules="backbone")) == [
        "task.init_checkpoint_modules"
    ]


def test_prediction_provenance_changes_when_a_file_in_an_input_directory_changes(tmp_path) -> None:
    (tmp_path / "README").touch()
    for name in ("part-0", "part-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_text("1")
    for data in (
        {"input_path": f"{tmp_path}/*", "source": "huggingface"},
        {"input_path": f"{tmp_path}/part-*"},
    ):
        (tmp_path / "part-1" / "data").write_text("1")
        before = _describe(validation_data=data)
        assert before == _describe(validation_data=data)
        (tmp_path / "part-1" / "data").write_text("2")
        assert _differences(before, _describe(validation_data=data)) == ["input files"]


def test_prediction_provenance_identifies_remote_files_by_name_and_size() -> None:
    # TensorFlow's in-memory file system, which is treated as remote.
    folder = "ram://test_prediction_run"
    data = {"input_path": f"{folder}/*.txt"}
    tf.io.gfile.makedirs(folder)
    seen = []
    for name, text in (("a", "1"), ("a", "12"), ("b", "1")):
        with tf.io.gfile.GFile(f"{folder}/{name}.txt", "w") as file:
            file.write(text)
        seen.append(_describe(validation_data=data)["input files"])
        assert seen[-1] == _describe(validation_data=data)["input files"]
    assert len({*seen, "none"}) == 4
    assert _describe(validation_data={"input_path": "unknown://a/b"})["input files"] == "none"


def test_prediction_provenance_changes_when_the_training_files_change(tmp_path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("a b")
    before = _describe(train_data={"input_path": str(path)})
    path.write_text("a c")
    now = _describe(train_data={"input_path": str(path)})
    assert _differences(before, now) == ["training files"]
    path.with_suffix(".csv").write_text("a b")
    other = _describe(train_data={"input_path": f"{path.with_suffix('.csv')}"})
    assert _differences(now, other) == ["task.train_data.input_path", "training files"]


def test_predicting_on_an_infinite_dataset_raises(trained, tmp_path) -> None:
    class Repeating(ClassesTask):
        def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
            return super().build_inputs(params, input_context).repeat()

    with pytest.raises(errors.ConfigValueError, match="repeat forever"):
        _run(_experiment(tmp_path), "predict", trained, task_cls=Repeating)


def test_predictions_use_averaged_instead_of_trained_weights(tmp_path) -> None:
    ema = {"trainer": {"optimizer_config": {"ema": {"average_decay": 0.9}}}}
    params = _experiment(tmp_path / "predictions", **ema)
    _run(params, "train", tmp_path)
    model, _ = _run(params, "predict", tmp_path)
    trained_outputs = model.predict(_features(), verbose=0)
    outputs = np.array([row["output"] for row in _rows(tmp_path / "predictions")])
    assert np.abs(outputs - trained_outputs).max() > 1e-3


def test_predictions_from_an_init_checkpoint_use_its_averaged_weights(tmp_path) -> None:
    ema = {"trainer": {"optimizer_config": {"ema": {"average_decay": 0.9}}}}
    _run(_experiment(tmp_path / "latest", **ema), "train", tmp_path / "run")
    _run(_experiment(tmp_path / "latest", **ema), "predict", tmp_path / "run")
    init = {"task": {"init_checkpoint": str(tmp_path / "run")}}
    _run(_experiment(tmp_path / "init", **init, **ema), "predict", tmp_path / "new")
    assert _contents(tmp_path / "init") == _contents(tmp_path / "latest")


def test_prediction_provenance_distinguishes_averaged_and_trained_weights_of_an_init_checkpoint(
    trained,
) -> None:
    params = _experiment(task={"init_checkpoint": str(trained)})
    weights, averages = (
        prediction_run.describe_source(params, None, averaged=averaged)["weights"]
        for averaged in (False, True)
    )
    assert averages == f"{weights}, averaged if possible"


def test_prediction_provenance_names_the_checkpoint_that_the_task_has_loaded(tmp_path) -> None:
    params = _experiment(task={"init_checkpoint": str(tmp_path)})
    task = ClassesTask(params.task)
    pretraining = tf.train.Checkpoint(model=task.build_model())
    loaded = pretraining.save(str(tmp_path / "ckpt"))
    base_task.choose_init_checkpoint(task, str(tmp_path), loaded)
    pretraining.save(str(tmp_path / "ckpt"))
    described = prediction_run.describe_source(params, None, task=task)
    assert described["weights"].startswith("ckpt-1, ")
