"""Tests that a metric has the same name in every report of every run."""

import json
import pathlib
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import train_lib
from tests.line_experiment import LineTask, line_experiment


class Largest(keras.metrics.Metric):
    """A metric without an explicit name whose result has two values."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.largest = self.add_weight(initializer="zeros")

    def update_state(self, labels: Any, outputs: Any, sample_weight: Any = None) -> None:
        del labels, sample_weight
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(outputs)))

    def result(self) -> dict[str, Any]:
        return {"largest": self.largest.value, "twice": 2 * self.largest.value}


class Unnamed(LineTask):
    """A task with unnamed metrics: two of one class, one in an attribute, and a compiled one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recall = keras.metrics.Recall()

    def build_model(self) -> keras.Model:
        model = super().build_model()
        model.compile(metrics=[keras.metrics.AUC()])
        return model

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        metrics = [keras.metrics.AUC(curve="PR"), self.recall, keras.metrics.AUC()]
        return metrics if training else [*metrics, keras.metrics.AUC(name="auc_7"), Largest()]


NAMES = {"auc", "auc_1", "auc_2", "recall"}
EVAL_NAMES = NAMES | {"auc_7", "largest", "twice"}


def _names(path: pathlib.Path, split: str) -> list[set[str]]:
    records = map(json.loads, path.read_text().splitlines())
    others = {"step", "split", "wall_time", "validation_loss", "training_loss", "learning_rate"}
    return [r.keys() - others - {"steps_per_second"} for r in records if r["split"] == split]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[pathlib.Path]:
    """Train two runs in one process, evaluate each in two more modes; return the directories."""
    found = [tmp_path_factory.mktemp("run") for _ in range(2)]
    params = line_experiment(trainer={"steps_per_loop": 4, "continuous_eval_timeout": 1})
    for directory in found:
        for mode in ("train_and_eval", "eval", "continuous_eval"):
            train_lib.run_experiment(None, Unnamed(params.task), mode, params, str(directory))
    return found


def test_unnamed_metrics_get_the_same_names_in_every_mode_and_run(
    directories: list[pathlib.Path],
) -> None:
    for directory in directories:
        for mode in ("", ".eval", ".continuous_eval"):
            names = _names(directory / f"metrics{mode}.json", "validation")
            assert names
            assert all(found == EVAL_NAMES for found in names)
        names = _names(directory / "metrics.json", "train")
        assert names
        assert all(found == NAMES for found in names)


def test_value_of_a_dict_metric_can_select_the_best_checkpoint_and_drive_early_stopping(
    tmp_path: pathlib.Path,
) -> None:
    metric = "twice"
    hook = {"name": "early_stopping", "metric": metric, "patience": 5, "direction": "maximize"}
    best = {"export_subdir": "best", "eval_metric": metric, "metric_comp": "higher"}
    block = {f"best_checkpoint_{name}": value for name, value in best.items()}
    params = line_experiment(trainer={**block, "hooks": [hook]})
    for mode in ("train_and_eval", "eval"):
        train_lib.run_experiment(None, Unnamed(params.task), mode, params, str(tmp_path))
    assert metric in json.loads((tmp_path / "best" / "info.json").read_text())


def test_misspelled_key_of_a_dict_metric_in_early_stopping_raises_at_the_first_evaluation(
    tmp_path: pathlib.Path,
) -> None:
    params = line_experiment(
        trainer={"hooks": [{"name": "early_stopping", "metric": "twise", "patience": 5}]}
    )
    with pytest.raises(errors.UnknownKeyError, match="Did you mean `twice`"):
        train_lib.run_experiment(
            None, Unnamed(params.task), "train_and_eval", params, str(tmp_path)
        )
    assert json.loads((tmp_path / "run.json").read_text())["global_step"] == 4


class Same(LineTask):
    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.MeanAbsoluteError(name="m"), keras.metrics.MeanSquaredError(name="m")]


class SameAsCompiled(LineTask):
    def build_model(self) -> keras.Model:
        model = super().build_model()
        model.compile(metrics=["mae"])
        return model


@pytest.mark.parametrize(("task_cls", "name"), [(Same, "m"), (SameAsCompiled, "mae")])
def test_duplicate_metric_name_raises_before_training(
    tmp_path: pathlib.Path, task_cls: type[LineTask], name: str
) -> None:
    params = line_experiment()
    with pytest.raises(errors.ConfigValueError, match=f"named `{name}`.*would be lost"):
        train_lib.run_experiment(None, task_cls(params.task), "train", params, str(tmp_path))


class Awkward(LineTask):
    """A task with a metric that can't be traced, one that is always 0, and one that is a vector."""

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        class Nothing(keras.metrics.Mean):
            def update_state(self, labels: Any, outputs: Any, sample_weight: Any = None) -> None:
                del labels, outputs, sample_weight
                self.total.assign_add(0.0)

            def result(self) -> Any:
                return self.total + 0.0

        class PerClass(keras.metrics.Sum):
            def result(self) -> Any:
                return tf.stack([self.total.value, -self.total.value])

        r2 = keras.metrics.R2Score(num_regressors=1)
        return [r2, Nothing(name="nothing"), PerClass(name="per_class")]

    def process_metrics(self, metrics: Any, labels: Any, model_outputs: Any, **_: Any) -> None:
        for metric in metrics[:2]:
            metric.update_state(labels, model_outputs)
        metrics[2].update_state(1.0)


def test_run_reports_an_untraceable_metric_but_omits_a_vector_metric(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    params = line_experiment(trainer={"train_steps": 24, "steps_per_loop": 1})
    train_lib.run_experiment(None, Awkward(params.task), "train", params, str(tmp_path))
    names = _names(tmp_path / "metrics.json", "train")
    assert names == [{"r2_score", "nothing"}] * 24
    assert caplog.text.count("`per_class` has the shape (2,)") == 1
    assert caplog.text.count("per_class") == 2
    assert "one entry per element" in caplog.text
