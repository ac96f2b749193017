import dataclasses
import json
import pathlib
from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task, input_reader, task_factory, train_lib
from official_lite.core import config_definitions as cfg
from official_lite.modeling.multitask import configs as multitask_configs
from official_lite.run import data_schemas, provenance
from tests import row_files


@dataclasses.dataclass
class RowsConfig(cfg.TaskConfig):
    pass


@task_factory.register_task_cls(RowsConfig)
class RowsTask(base_task.Task):
    """A task that fits a line to the rows of a source."""

    def build_model(self):
        dense = keras.layers.Dense(1, kernel_initializer="zeros")
        return keras.Sequential([keras.Input((1,)), dense])

    def build_inputs(self, params, input_context=None):
        def parse(row):
            x = tf.cast(row["x"][:, tf.newaxis], tf.float32) / 100.0
            return x, 3 * x

        parse = input_reader.takes_batches(parse)
        return input_reader.InputReader(params, parser_fn=parse).read(input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(tf.square(labels - model_outputs))


class NumbersTask(RowsTask):
    """A task that interprets `source` itself."""

    def build_inputs(self, params, input_context=None):
        x = tf.range(1.0, 33.0)[:, tf.newaxis] * {"numbers": 0.1}[params.source]
        dataset = tf.data.Dataset.from_tensor_slices((x, 3 * x)).repeat()
        return dataset.batch(params.global_batch_size, drop_remainder=True)


@dataclasses.dataclass
class CreatedData(cfg.DataConfig):
    NAMES_FILES: ClassVar[bool] = False


class CreatingTask(RowsTask):
    """A task that writes its input files before it reads them."""

    def build_inputs(self, params, input_context=None):
        row_files.write("parquet", pathlib.Path(params.input_path).parent)
        return super().build_inputs(params, input_context)


@pytest.fixture
def run(experiment, tmp_path):
    """Return a function that trains on a source and returns the weights."""

    def run(
        input_path,
        steps=4,
        *,
        folder="run",
        mode="train",
        source="parquet",
        task_cls=RowsTask,
        data_cls=cfg.DataConfig,
        **fields,
    ):
        fields = {"source": source, "input_path": input_path, "global_batch_size": 32, **fields}
        params = experiment(
            trainer={"train_steps": steps, "checkpoint_interval": 4}, runtime={"seed": 3}
        )
        params.task = RowsConfig(
            train_data=data_cls(is_training=True, **fields),
            validation_data=data_cls(is_training=False, **fields),
        )
        strategy = tf.distribute.get_strategy()
        task = task_cls(params.task)
        model, _ = train_lib.run_experiment(strategy, task, mode, params, str(tmp_path / folder))
        return model.get_weights()

    return run


def test_first_run_writes_the_schema_of_each_data_block(run, tmp_path):
    path = row_files.write("parquet", tmp_path / "data")
    run(path, mode="train_and_eval", label_column="label")
    for block in ("train_data", "validation_data"):
        content = json.loads((tmp_path / "run" / f"data_schema.{block}.json").read_text())
        assert content["columns"]["label"] == {"dtype": "int64", "shape": [], "range": [0, 9]}


@pytest.mark.parametrize("source", ["parquet", "csv"])
def test_data_that_differ_from_the_schema_raise_before_the_run_writes_any_file(
    run, tmp_path, source
):
    path = row_files.write(source, tmp_path / "data")
    run(path, source=source, folder="one")
    schema = tmp_path / "one" / "data_schema.train_data.json"
    changed = row_files.write(
        source, tmp_path / "changed", changes={"x": None, "X": np.arange(1000.0)}
    )
    with pytest.raises(errors.DataError, match=r"'x' \(float64\) is missing. Did you mean `X`"):
        run(changed, source=source, folder="other", schema=str(schema))
    assert not (tmp_path / "other").exists()


def test_runs_can_share_a_schema_file(run, tmp_path):
    path = row_files.write("parquet", tmp_path / "data")
    schema = tmp_path / "schemas" / "rows.json"
    run(path, schema=str(schema), folder="one", columns=["x", "label"])
    assert list(json.loads(schema.read_text())["columns"]) == ["x", "label"]
    assert not (tmp_path / "one" / "data_schema.train_data.json").exists()
    run(path, schema=str(schema), folder="other", columns=["x", "label"])
    with pytest.raises(errors.DataError, match=r"'name'.* is new"):
        run(path, schema=str(schema), folder="third", columns=["x", "label", "name"])


def test_error_for_an_unknown_label_column_suggests_the_nearest_name(run, tmp_path):
    path = row_files.write("parquet", tmp_path / "data")
    with pytest.raises(errors.ConfigValueError, match=r"'labels', .* Did you mean `label`"):
        run(path, label_column="labels")


def test_error_for_an_unknown_source_suggests_the_nearest_name(run, tmp_path):
    path = row_files.write("parquet", tmp_path / "data")
    with pytest.raises(errors.UnknownNameError, match=r"'parqet'.*`parquet`"):
        run(path, source="parqet")


def test_data_source_handled_by_the_task_gets_no_schema(run, tmp_path):
    run("anywhere", source="numbers", task_cls=NumbersTask)
    assert not list(tmp_path.rglob("data_schema*"))


def test_files_that_the_task_creates_need_not_exist_before_the_run(run, tmp_path):
    path = str(tmp_path / "data" / "*.parquet")
    run(path, data_cls=CreatedData, task_cls=CreatingTask)
    assert list((tmp_path / "data").iterdir())


def test_resumed_run_ends_with_the_weights_of_an_uninterrupted_run(run, tmp_path):
    path = row_files.write("parquet", tmp_path / "data")
    whole = run(path, 40, folder="whole")
    run(path, 12, folder="parts")
    parts = run(path, 40, folder="parts")
    assert [w.tobytes() for w in whole] == [w.tobytes() for w in parts]


@pytest.mark.parametrize("source", ["parquet", "huggingface"])
def test_run_records_the_checksums_of_its_input_files(run, tmp_path, source):
    path = row_files.write(source, tmp_path / "data")
    run(path, source=source)
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["inputs"]
    assert list(provenance.find_input_differences(recorded)) == []
    file = max(pathlib.Path(tmp_path / "data").rglob("*"), key=lambda p: p.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert [one for one, *_ in provenance.find_input_differences(recorded)] == [str(file)]


def test_schemas_of_several_tasks_are_found_by_the_names_of_the_tasks(tmp_path):
    def params(*names):
        routines = []
        for name in names:
            train_data = cfg.DataConfig(source="csv", input_path=paths[name])
            config = RowsConfig(train_data=train_data)
            routines.append(multitask_configs.TaskRoutine(task_name=name, task_config=config))
        return multitask_configs.MultiTaskExperimentConfig(
            task=multitask_configs.MultiTaskConfig(task_routines=tuple(routines))
        )

    paths = {
        "glue/mnli": row_files.write("csv", tmp_path / "a"),
        "rte": row_files.write("csv", tmp_path / "b", changes={"x": None}),
    }
    model_dir = tmp_path / "run"
    model_dir.mkdir()
    both = params("glue/mnli", "rte")
    data_schemas.enforce(both, "train", str(model_dir), is_chief=True)
    named = [
        model_dir / f"data_schema.task_routines.{name}.train_data.json"
        for name in ("glue%2Fmnli", "rte")
    ]
    # Earlier versions named the files by the positions of the tasks.
    for index, path in enumerate(named):
        path.rename(model_dir / f"data_schema.task_routines.{index}.train_data.json")
    data_schemas.enforce(both, "train", str(model_dir), is_chief=True)
    assert all(path.exists() for path in named)
    data_schemas.check(params("rte"), "train", str(model_dir))
    data_schemas.check(params("rte", "glue/mnli"), "train", str(model_dir))
    paths["rte"] = paths["glue/mnli"]
    with pytest.raises(errors.DataError, match=r"'x'.* is new"):
        data_schemas.check(params("rte"), "train", str(model_dir))
