"""Trials that are functions, and models that are injected."""

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas, search
from official_lite.core import base_task
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays
from tests.search import toys

CHOICES = {"width": [1.0, 2.0, 3.0]}


def _width(choices: dict[str, float]) -> float:
    return choices["width"]


def _study(fit: Any, tmp_path, **fields: Any) -> Any:
    evaluator = search.ModelEvaluator(_width, search.FunctionalTrainer(fit))
    config = toys.config(space=CHOICES, strategy="grid", **fields)
    return search.run_study(evaluator, config, str(tmp_path))


def test_function_of_five_lines_evaluates_ten_candidates(tmp_path) -> None:
    def fit(model: float, target: float) -> float:
        return abs(model - target)

    trainer = search.FunctionalTrainer(fit, target=2.2)
    experiment = search.Experiment(
        lambda choices: choices["x"], trainer, toys.SPACE, "random", direction="minimize"
    )
    study = experiment.run(str(tmp_path), num_trials=10)
    assert len(study.trials) == 10
    best = experiment.export_top_models(2)
    assert abs(best[0]["x"] - 2.2) <= abs(best[1]["x"] - 2.2)


def test_function_that_reports_is_pruned(tmp_path) -> None:
    def fit(model: float, report: Any) -> float:
        for _ in range(4):
            report(model)
        return model

    study = _study(fit, tmp_path, pruner={"name": "threshold", "upper": 2.5})
    by_width = {trial.params["width"]: trial.state.name for trial in study.trials}
    assert by_width == {1.0: "COMPLETE", 2.0: "COMPLETE", 3.0: "PRUNED"}


def test_function_gets_the_trial_if_it_asks(tmp_path) -> None:
    def fit(model: float, trial: search.TrialRun) -> float:
        assert trial.params == {"width": model}
        return model

    assert _study(fit, tmp_path).best_value == 1.0


def test_function_named_in_a_config_gets_the_model_of_the_task(tmp_path) -> None:
    params = cfg.ExperimentConfig(
        task=NumberConfig(),
        search={
            "space": {"task.number": [1.0, 2.0, 3.0]},
            "direction": "minimize",
            "strategy": "grid",
            "evaluator": {"name": "tests.search.toys:fit", "target": 2.5},
        },
    )
    study = search.run_search(params, str(tmp_path))
    assert sorted(trial.value for trial in study.trials) == [0.5, 0.5, 1.5]


@dataclasses.dataclass
class NumberConfig(cfg.TaskConfig):
    number: float = 0.0


@cfg.base_config.bind(NumberConfig)
class NumberTask:
    """Its model is a number."""

    def __init__(self, params: NumberConfig) -> None:
        self._number = params.number

    def build_model(self) -> float:
        return self._number


@dataclasses.dataclass
class LineConfig(cfg.TaskConfig):
    """There is nothing to set."""


class Line(base_task.Task):
    """Fits a line with the model that it is given, and a layer of its own."""

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.head = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

    def set_model(self, model: keras.Model) -> None:
        self.candidate = model

    def build_model(self) -> keras.Model:
        inputs = keras.Input((2,))
        return keras.Model(inputs, self.head(self.candidate(inputs)))

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        x = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
        return arrays.from_arrays(
            (x, x.sum(1, keepdims=True)),
            params.global_batch_size,
            shuffle=False,
            repeat=bool(params.is_training),
            input_context=input_context,
        )

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(tf.square(model_outputs - labels))

    @classmethod
    def create_optimizer(cls, *_: Any) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(0.1)


def by_function(values: dict[str, Any]) -> keras.Model:
    return keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(int(values["units"])), keras.layers.Dense(1)]
    )


class ByClass(keras.Model):
    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        self.hidden, self.last = keras.layers.Dense(int(values["units"])), keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.last(self.hidden(x))


def _units() -> int:
    return int(nas.ValueChoice(["1", "2"], label="units"))


def by_function_with_choices() -> keras.Model:
    return keras.Sequential([keras.layers.Dense(_units()), keras.layers.Dense(1)])


def _open_layer() -> keras.layers.Layer:
    def two_layers() -> keras.Model:
        return keras.Sequential([keras.layers.Dense(1), keras.layers.Dense(1)])

    return nas.LayerChoice({"1": two_layers, "2": lambda: keras.layers.Dense(1)}, label="units")


class WithChoices(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = _open_layer()

    def call(self, x: Any) -> Any:
        return self.hidden(x)


def functional() -> keras.Model:
    inputs = keras.Input((2,))
    return keras.Model(inputs, _open_layer()(inputs))


BY_UNITS = {"1": 3 + 2, "2": 6 + 3}
BY_LAYERS = {"1": 3 + 2, "2": 3}
HEAD = 2


@pytest.mark.parametrize(
    ("strategy", "devices"), [("one_device", None), ("mirrored", None), ("mirrored", [0, 1])]
)
@pytest.mark.parametrize(
    ("base_model", "sizes"),
    [
        (by_function, BY_UNITS),
        pytest.param(ByClass, BY_UNITS, marks=pytest.mark.slow),
        pytest.param(by_function_with_choices, BY_UNITS, marks=pytest.mark.slow),
        pytest.param(WithChoices, BY_LAYERS, marks=pytest.mark.slow),
        pytest.param("instance", BY_LAYERS, marks=pytest.mark.slow),
        pytest.param("functional", BY_LAYERS, marks=pytest.mark.slow),
    ],
)
def test_candidates_are_built_in_the_scope_of_their_run(
    base_model, sizes, strategy, devices, tmp_path
) -> None:
    instances = {"instance": WithChoices, "functional": functional}
    base_model = instances[base_model]() if isinstance(base_model, str) else base_model
    names = None if devices is None else [f"CPU:{number}" for number in devices]
    params = cfg.ExperimentConfig(
        task=LineConfig(
            train_data=cfg.DataConfig(global_batch_size=8, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=8, is_training=False),
        ),
        trainer=cfg.TrainerConfig(
            train_steps=2, steps_per_loop=2, validation_interval=1, writers=[]
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy=strategy, devices=names, execution="graph"),
    )
    takes_values = base_model in (by_function, ByClass)
    experiment = search.Experiment(
        base_model,
        search.TaskTrainer(Line, params),
        {"units": ["1", "2"]} if takes_values else None,
        "grid",
        direction="minimize",
        metric="num_parameters",
    )
    study = experiment.run(str(tmp_path))
    assert {t.params["units"]: t.value for t in study.trials} == {
        units: size + HEAD for units, size in sizes.items()
    }
    assert [list(t.intermediate_values) for t in study.trials] == [[1, 2], [1, 2]]
