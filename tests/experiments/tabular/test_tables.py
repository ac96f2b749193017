import csv
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest

from experiments.tabular import configs, data, model, task
from official_lite import pipeline
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from tests.experiments import evaluations

NUM_ROWS = 60
CITIES = ["Bern", "Oslo", "Rome", ""]


def _rows() -> list[dict[str, str]]:
    """Return rows with a missing number, a missing category, and a category that occurs once."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(NUM_ROWS):
        height = rng.normal(170, 10)
        city = CITIES[number % len(CITIES)] if number else "Lima"
        is_tall = height + 5 * (city == "Oslo") > 172
        cell = "" if number % 7 == 1 else f"{height:.1f}"
        zone = str(number % 3)
        rows.append({"height": cell, "city": city, "zone": zone, "tall": ["no", "yes"][is_tall]})
    return rows


def _write(path: pathlib.Path, rows: list[dict[str, str]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    return _write(tmp_path / "table.csv", _rows())


def _config(path: str, **fields: Any) -> configs.TableConfig:
    return configs.TableConfig(input_path=path, target="tall", **fields)


def _experiment(path: str, train_steps: int) -> cfg.ExperimentConfig:
    params = configs.csv()
    params.override(
        {
            "task": {
                "input_path": path,
                "target": "tall",
                "categorical": ["zone"],
                "model": {"units": [8], "embedding_size": 2},
                "train_data": {"global_batch_size": 8},
                "validation_data": {"global_batch_size": 4},
            },
            "trainer": {
                "train_steps": train_steps,
                "steps_per_loop": 3,
                "validation_interval": 3,
                "checkpoint_interval": 3,
                "writers": ["jsonl"],
            },
        }
    )
    return params


def _train(
    params: cfg.ExperimentConfig, model_dir: pathlib.Path
) -> tuple[keras.Model, Mapping[str, Any]]:
    return pipeline.RunPipeline(params, "train_and_eval", str(model_dir)).run()


def test_columns_are_numeric_if_all_cells_are_numbers_and_categorical_otherwise(path: str) -> None:
    table = data.build_table(data.read_csv(path), _config(path))
    assert table.numeric_names == ("height", "zone")
    assert table.categorical_names == ("city",)
    assert table.class_names == ("no", "yes")
    rows = _rows()
    heights = [float(row["height"] or "nan") for row in rows]
    np.testing.assert_array_equal(table.numbers[:, 0], np.array(heights, np.float32))
    assert list(table.categories[:, 0]) == [row["city"] for row in rows]
    assert list(table.labels) == [row["tall"] == "yes" for row in rows]


def test_config_can_declare_columns_categorical_or_ignored(path: str) -> None:
    config = _config(path, categorical=("zone",), ignored=("city",))
    table = data.build_table(data.read_csv(path), config)
    assert (table.numeric_names, table.categorical_names) == (("height",), ("zone",))


def test_error_about_a_missing_column_suggests_the_nearest_column_name(path: str) -> None:
    columns = data.read_csv(path)
    with pytest.raises(errors.DataError, match=r"'cty'.*`task\.categorical`.*Did you mean `city`"):
        data.build_table(columns, _config(path, categorical=("cty",)))
    config = _config(path)
    config.target = "tal"
    with pytest.raises(errors.DataError, match=r"'tal'.*`task\.target`.*`tall`"):
        data.build_table(columns, config)
    config.target = ""
    with pytest.raises(errors.ConfigValueError, match=r"`task\.target` is empty.*'height'"):
        data.build_table(columns, config)


def test_error_for_a_non_numeric_cell_names_its_row_and_column(path: str) -> None:
    with pytest.raises(errors.DataError, match="Row 1 of the column 'city' has 'Lima'"):
        data.build_table(data.read_csv(path), _config(path, numeric=("city",)))


def test_missing_malformed_and_empty_csv_files_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.DataError, match=r"nowhere\.csv.*`task\.input_path`"):
        data.read_csv(str(tmp_path / "nowhere.csv"))
    broken = tmp_path / "broken.csv"
    broken.write_text("a,b\n1,2\n3\n")
    with pytest.raises(errors.DataError, match=r"line 3: expected 2 cells.*found 1"):
        data.read_csv(str(broken))
    broken.write_text("a,b\n")
    with pytest.raises(errors.DataError, match="has no rows"):
        data.read_csv(str(broken))


def test_each_row_is_in_one_split_per_fold_and_in_the_test_split_of_one_fold() -> None:
    tested: list[int] = []
    for fold in range(5):
        rows = data.split_rows(NUM_ROWS, configs.TableConfig(fold=fold))
        assert sorted(np.concatenate(list(rows.values()))) == list(range(NUM_ROWS))
        assert len(rows["validation"]) == round(0.15 * 0.8 * NUM_ROWS)
        tested += list(rows["test"])
    assert sorted(tested) == list(range(NUM_ROWS))
    with pytest.raises(errors.ConfigValueError, match="from 0 to 4"):
        configs.TableConfig(fold=5).validate()


def test_normalization_uses_training_rows_only(tmp_path: pathlib.Path) -> None:
    rows = _rows()
    config = _config(str(tmp_path / "table.csv"))
    splits = data.split_rows(NUM_ROWS, config)
    for number in [*splits["validation"], *splits["test"]]:
        rows[number]["height"] = "1e6"
    _write(tmp_path / "table.csv", rows)
    built = task.TableTask(config).build_model()
    (normalization,) = (x for x in built.layers if isinstance(x, keras.layers.Normalization))
    training = [float(rows[number]["height"] or "nan") for number in splits["train"]]
    assert float(normalization.mean[0, 0]) == pytest.approx(np.nanmean(training), rel=1e-5)
    assert float(normalization.variance[0, 0]) == pytest.approx(np.nanvar(training), rel=1e-5)


def test_missing_number_is_replaced_by_the_mean_and_sets_an_indicator() -> None:
    training = np.array([[1.0], [3.0], [np.nan]], np.float32)
    built = model.build_model(configs.TableModelConfig(units=()), training, [], 2)
    kernel, _ = built.get_layer("logits").get_weights()
    built.get_layer("logits").set_weights([np.array([[1.0, 0.0], [0.0, 1.0]]), np.zeros(2)])
    assert kernel.shape == (2, 2)
    outputs = built({"numbers": np.array([[3.0], [2.0], [np.nan]], np.float32)})
    np.testing.assert_allclose(outputs, [[1, 0], [0, 0], [0, 1]], atol=1e-6)


def test_column_that_is_constant_in_the_training_rows_is_not_scaled_by_its_zero_variance() -> None:
    training = np.array([[5.0], [5.0]], np.float32)
    built = model.build_model(configs.TableModelConfig(units=()), training, [], 2)
    built.get_layer("logits").set_weights([np.array([[1.0, 0.0]]), np.zeros(2)])
    np.testing.assert_allclose(built({"numbers": np.array([[6.0]], np.float32)}), [[1, 0]])


def test_numbers_too_large_for_float16_are_normalized_in_float32() -> None:
    training = np.array([[1e6], [3e6]], np.float32)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        built = model.build_model(configs.TableModelConfig(units=()), training, [], 2)
    finally:
        keras.config.set_dtype_policy("float32")
    built.get_layer("logits").set_weights([np.array([[1.0, 0.0]]), np.zeros(2)])
    np.testing.assert_allclose(built({"numbers": np.array([[3e6]], np.float32)}), [[1, 0]])


def test_category_absent_from_training_rows_is_encoded_as_unknown(path: str) -> None:
    config = _config(path)
    splits = dict(data.split_rows(NUM_ROWS, config))
    # Only row 0 is from Lima, so the training rows lack this category.
    splits["train"] = np.setdiff1d(np.arange(NUM_ROWS), [0])
    splits["test"] = np.array([0, 1, 4])
    table = data.build_table(data.read_csv(path), config)
    params = config.validation_data.replace(split="test")
    ((features, _),) = data.build_dataset(table, splits, params).as_numpy_iterator()
    lima, oslo, empty = features["categories"][[0, 1, 2], 0]
    assert lima == 0
    assert oslo > 0
    assert empty > 0
    assert oslo != empty


def test_reported_accuracy_and_auc_match_the_predictions(path: str, tmp_path: pathlib.Path) -> None:
    params = _experiment(path, train_steps=6)
    trained, logs = _train(params, tmp_path / "run")
    built = task.TableTask(params.task)
    ((features, labels),) = built.build_inputs(
        params.task.validation_data.replace(global_batch_size=NUM_ROWS)
    ).as_numpy_iterator()
    logits = np.asarray(trained(features, training=False))
    assert float(logs["accuracy"]) == pytest.approx(np.mean(logits.argmax(-1) == labels), abs=1e-6)
    positive = (logits[:, 1] - logits[:, 0])[labels == 1]
    negative = (logits[:, 1] - logits[:, 0])[labels == 0]
    pairs = np.sign(positive[:, np.newaxis] - negative) / 2 + 0.5
    assert float(logs["auc"]) == pytest.approx(pairs.mean(), abs=0.03)


def test_training_stops_early_and_the_best_weights_can_be_evaluated(
    path: str, tmp_path: pathlib.Path
) -> None:
    params = _experiment(path, train_steps=3000)
    # The model overfits a table this small within a few steps.
    params.override(
        {
            "trainer": {
                "hooks": [{"name": "early_stopping", "metric": "validation_loss", "patience": 2}],
                "optimizer_config": {"learning_rate": {"constant": {"learning_rate": 0.1}}},
            }
        }
    )
    _train(params, tmp_path / "run")
    records = evaluations.validations(tmp_path / "run")
    losses = [record["validation_loss"] for record in records]
    best = int(np.argmin(losses))
    assert len(losses) == best + 1 + 2
    assert records[-1]["step"] < 3000
    params.task.init_checkpoint = str(tmp_path / "run" / "best_ckpt")
    _, logs = pipeline.RunPipeline(params, "eval", str(tmp_path / "best")).run()
    assert float(logs["validation_loss"]) == pytest.approx(losses[best], rel=1e-6)


@pytest.mark.slow
def test_interrupted_training_ends_with_the_exact_weights_of_an_uninterrupted_run(
    path: str, tmp_path: pathlib.Path
) -> None:
    def train(name: str, train_steps: int) -> keras.Model:
        return _train(_experiment(path, train_steps), tmp_path / name)[0]

    evaluations.assert_resumes_exactly(train, 3, 6)


@pytest.mark.slow
def test_breast_cancer_reaches_a_validation_loss_below_0_15(tmp_path: pathlib.Path) -> None:
    params = configs.breast_cancer()
    params.trainer.writers = ["jsonl"]
    _train(params, tmp_path / "run")
    records = evaluations.validations(tmp_path / "run")
    best = json.loads((tmp_path / "run" / "best_ckpt" / "info.json").read_text())
    assert min(record["validation_loss"] for record in records) < 0.15, best
