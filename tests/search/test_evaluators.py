"""Trials that run experiments or functions, and models that are passed to tasks."""

import dataclasses
import json
import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.vision.digits import configs
from official_lite import nas, pipeline, search
from official_lite.common import errors
from official_lite.config import compatibility, epochs
from official_lite.core import base_task
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays
from official_lite.modeling.hyperparams import yaml_io
from official_lite.modeling.multitask import configs as multitask_configs
from official_lite.run import runtime
from official_lite.search import evaluators, storage
from official_lite.search.search_config import Space
from tests.search import hooks, toys

RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
SPACE = {
    RATE: {"type": "float", "low": 1e-4, "high": 1e-1, "log": True},
    "task": {"model": {"units": [[8], [8, 8], [16]]}},
}
TINY = {
    "trainer": {
        "train_steps": 20,
        "steps_per_loop": 5,
        "validation_interval": 10,
        "validation_steps": 1,
        "checkpoint_interval": 10,
        "best_checkpoint_export_subdir": "",
        "best_checkpoint_eval_metric": "",
        "writers": ["jsonl"],
    },
    "runtime": {"execution": "graph"},
}

CHOICES = {"width": [1.0, 2.0, 3.0]}
BY_UNITS = {"1": 3 + 2, "2": 6 + 3}
BY_LAYERS = {"1": 3 + 2, "2": 3}
HEAD = 2


def digits(**fields):
    params = configs.digits_mlp()
    params.override(TINY)
    block = {"space": SPACE, "metric": "accuracy", "direction": "maximize", "num_trials": 3}
    params.override({"search": {**block, **fields}})
    return params


@pytest.mark.slow
def test_each_search_trial_trains_in_its_own_directory(tmp_path) -> None:
    study = search.run_search(digits(num_trials=2), str(tmp_path))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    for trial in study.trials:
        model_dir = tmp_path / "trials" / f"{trial.number:04d}"
        assert (model_dir / "ckpt-20.index").exists()
        assert list(trial.intermediate_values) == [10, 20]
        assert trial.intermediate_values[20] == trial.value
        last = json.loads((model_dir / "metrics.json").read_text().splitlines()[-1])
        assert any(value == pytest.approx(trial.value) for value in last.values())
    top = json.loads((tmp_path / "top_k.json").read_text())
    assert top[0]["values"]["accuracy"] == study.best_value


@pytest.mark.slow
def test_rerunning_the_params_yaml_of_a_trial_reproduces_its_value(tmp_path) -> None:
    study = search.run_search(digits(num_trials=1), str(tmp_path))
    params = configs.digits_mlp()
    params.override(yaml_io.read_yaml(tmp_path / "trials" / "0000" / "params.yaml"))
    runtime.forget_last_run()
    _, logs = pipeline.RunPipeline(params, "train_and_eval", str(tmp_path / "again")).run()
    assert float(logs["accuracy"]) == study.best_value


def test_final_value_of_a_trial_can_be_the_metric_of_its_best_checkpoint(tmp_path) -> None:
    params = digits(num_trials=1, final_value="best_checkpoint")
    with pytest.raises(errors.ConfigValueError, match="keeps no best checkpoint"):
        search.run_search(params, str(tmp_path))
    best = {"eval_metric": "validation_loss", "metric_comp": "higher", "export_subdir": "best"}
    params.override({"trainer": {f"best_checkpoint_{name}": v for name, v in best.items()}})
    (trial,) = search.run_search(params, str(tmp_path)).trials
    info = json.loads((tmp_path / "trials" / "0000" / "best" / "info.json").read_text())
    # The first evaluation has the highest loss.
    assert info["best_ckpt_global_step"] == 10
    assert trial.value == info["accuracy"] == trial.intermediate_values[10]


def test_pruned_trial_ends_cleanly_after_its_evaluation(tmp_path) -> None:
    params = digits(pruner={"name": "threshold", "lower": 2.0}, num_trials=1)
    (trial,) = search.run_search(params, str(tmp_path)).trials
    assert trial.state.name == "PRUNED"
    assert list(trial.intermediate_values) == [10]
    record = json.loads((tmp_path / "trials" / "0000" / "run.json").read_text())
    assert (record["status"], record["global_step"]) == ("done", 10)


def test_trial_in_the_mode_train_is_evaluated_once_after_its_training(tmp_path) -> None:
    (trial,) = search.run_search(digits(num_trials=1, mode="train"), str(tmp_path)).trials
    assert trial.state.name == "COMPLETE"
    assert trial.intermediate_values == {20: trial.value}


@pytest.mark.slow
def test_num_parameters_can_be_a_search_objective(tmp_path) -> None:
    objectives = {"metric": ["accuracy", "num_parameters"], "direction": ["maximize", "minimize"]}
    space = {"task.model.units": [[8], [16]]}
    nsga2 = {"name": "nsga2", "population_size": 2}
    params = digits(**objectives, space=space, strategy=nsga2, num_trials=2)
    for trial in search.run_search(params, str(tmp_path)).trials:
        (units,) = search.Space(space).decode(trial.params)["task.model.units"]
        assert trial.values[1] == 64 * units + units + units * 10 + 10


@pytest.mark.slow
def test_preempted_trial_resumes_from_its_checkpoint(tmp_path) -> None:
    whole = search.run_search(digits(num_trials=1), str(tmp_path / "whole"))
    params = digits(num_trials=1)
    stop = {"name": "tests.search.hooks:StopOnce", "step": 15, "number": hooks.SIGTERM}
    params.trainer.hooks = [{**stop, "marker": str(tmp_path / "marker")}]
    with pytest.raises(errors.PreemptedError):
        search.run_search(params, str(tmp_path / "broken"))
    study = search.run_search(params, str(tmp_path / "broken"))
    assert [trial.values for trial in study.trials] == [trial.values for trial in whole.trials]
    lines = (tmp_path / "broken" / "trials" / "0000" / "metrics.json").read_text().splitlines()
    steps = [one["step"] for one in map(json.loads, lines) if "training_loss" in one]
    assert steps == [5, 10, 15, 20]
    attributes = study.trials[0].user_attrs
    assert (attributes["starts"], attributes["stops"]) == (2, 1)


@pytest.mark.parametrize("batch_size", [16, 256])
def test_epochs_and_schedules_are_resolved_for_the_batch_size_of_each_trial(batch_size) -> None:
    # The decay covers the whole training run.
    ratio = {"cosine": {"decay_ratio": 1.0}}
    covering = {"trainer": {"optimizer_config": {"learning_rate": ratio}}}
    data = {"train_data": {"num_examples": 1437, "global_batch_size": 32}}
    given = digits().replace(task=data).replace(**covering).replace(trainer={"train_epochs": 10})
    evaluator = evaluators.ExperimentEvaluator(epochs.resolve(given))
    tried = {"task.train_data.global_batch_size": batch_size}
    evaluator.check(Space({path: [value] for path, value in tried.items()}))
    trial = epochs.resolve(evaluator.trial_params(tried))
    data["train_data"]["global_batch_size"] = batch_size
    assert trial.trainer.train_steps == math.ceil(14370 / batch_size)
    assert trial.trainer.steps_per_epoch == 1437 // batch_size
    decay_steps = trial.trainer.optimizer_config.learning_rate.cosine.decay_steps
    assert decay_steps == trial.trainer.train_steps
    same = epochs.resolve(given.replace(task=data))
    assert trial.trainer.optimizer_config == same.trainer.optimizer_config


def test_one_trial_may_select_a_learning_rate_type_and_set_the_fields_of_that_type() -> None:
    learning_rate = "trainer.optimizer_config.learning_rate"
    evaluator = evaluators.ExperimentEvaluator(digits())
    tried = {
        f"{learning_rate}.constant.learning_rate": 0.5,
        f"{learning_rate}.type": "constant",
        "task.model.units": [3],
    }
    params = evaluator.trial_params(tried)
    assert params.trainer.optimizer_config.learning_rate.get().learning_rate == 0.5
    assert params.task.model.units == (3,)
    assert params.search is None


def _width(choices: dict[str, float]) -> float:
    return choices["width"]


def _study(fit: Any, tmp_path, **fields: Any) -> Any:
    evaluator = search.ModelEvaluator(_width, search.FunctionalTrainer(fit))
    config = toys.config(space=CHOICES, strategy="grid", **fields)
    return search.run_study(evaluator, config, str(tmp_path))


def test_trial_function_that_reports_values_can_be_pruned(tmp_path) -> None:
    def fit(model: float, report: Any, trial: search.TrialRun) -> float:
        assert trial.params == {"width": model}
        for _ in range(4):
            report(model)
        return model

    study = _study(fit, tmp_path, pruner={"name": "threshold", "upper": 2.5})
    by_width = {trial.params["width"]: trial.state.name for trial in study.trials}
    assert by_width == {1.0: "COMPLETE", 2.0: "COMPLETE", 3.0: "PRUNED"}


def test_evaluator_function_in_the_config_receives_the_model_of_the_task(tmp_path) -> None:
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


def _search_numbers(tmp_path, *, vocab: str = "", allow: bool = False, **trainer: Any) -> Any:
    params = cfg.ExperimentConfig(
        task=NumberConfig(vocab_path=vocab),
        trainer=cfg.TrainerConfig(**trainer),
        search={
            "space": {"task.number": [1.0, 2.0]},
            "direction": "minimize",
            "strategy": "grid",
            "evaluator": {"name": "tests.search.toys:fit"},
        },
    )
    return search.run_search(params, str(tmp_path), allow_config_change=allow)


def test_study_resumes_after_config_changes_that_do_not_affect_training_and_with_new_config_fields(
    tmp_path,
) -> None:
    study = _search_numbers(tmp_path, train_steps=10)
    recorded = study.user_attrs[storage._ORIGIN]
    del recorded["trainer.validation_steps"]
    study.set_user_attr(storage._ORIGIN, recorded)
    _search_numbers(tmp_path, train_steps=10, max_to_keep=2)
    with pytest.raises(errors.ConfigValueError, match=r"trainer\.validation_steps: -1 -> 3"):
        _search_numbers(tmp_path, train_steps=10, validation_steps=3)


def _search_one_of_several_tasks(tmp_path, **train_data: Any) -> tuple[Any, Any]:
    """Run a study of an experiment with several tasks; return the study and the config."""
    routine = multitask_configs.TaskRoutine(
        task_name="numbers", task_config=NumberConfig(train_data=cfg.DataConfig(**train_data))
    )
    params = multitask_configs.MultiTaskExperimentConfig(
        task=multitask_configs.MultiTaskConfig(task_routines=(routine,))
    )
    origin, optional_origin = evaluators.ExperimentEvaluator(params).origin()
    study = search.run_study(
        toys.parabola,
        toys.config(num_trials=1),
        str(tmp_path),
        origin=origin,
        optional_origin=optional_origin,
    )
    return study, params


def test_study_of_several_tasks_resumes_after_config_changes_that_do_not_affect_training(
    tmp_path,
) -> None:
    study, params = _search_one_of_several_tasks(tmp_path)
    recorded = study.user_attrs[storage._ORIGIN]
    # Earlier versions recorded the list of tasks as a whole. This one lacked a field.
    (routine,) = compatibility.flatten(params.as_dict())["task.task_routines"]
    del routine["task_config"]["train_data"]["shuffle_buffer_size"]
    older = {name: recorded[name] for name in recorded if "task_routines[" not in name}
    study.set_user_attr(storage._ORIGIN, {**older, "task.task_routines": [routine]})
    for _ in range(2):
        _search_one_of_several_tasks(tmp_path, prefetch_buffer_size=3)
    with pytest.raises(errors.ConfigValueError, match=r"shuffle_buffer_size: 100 -> 7"):
        _search_one_of_several_tasks(tmp_path, shuffle_buffer_size=7)


def test_study_resumes_only_with_the_new_config_after_a_config_change_was_allowed(tmp_path) -> None:
    _search_numbers(tmp_path, train_steps=10)
    _search_numbers(tmp_path, train_steps=20, allow=True)
    _search_numbers(tmp_path, train_steps=20)
    with pytest.raises(errors.ConfigValueError, match=r"trainer\.train_steps: 20 -> 10"):
        _search_numbers(tmp_path, train_steps=10)


def test_study_with_a_changed_model_file_is_refused_unless_changes_are_allowed(tmp_path) -> None:
    vocab, study_dir = tmp_path / "vocab.txt", tmp_path / "study"
    vocab.write_text("a b")
    _search_numbers(study_dir, vocab=str(vocab))
    vocab.write_text("b a")
    with pytest.raises(errors.ConfigValueError, match=r"task\.vocab_path\.sha256"):
        _search_numbers(study_dir, vocab=str(vocab))
    _search_numbers(study_dir, vocab=str(vocab), allow=True)


@dataclasses.dataclass
class NumberConfig(cfg.TaskConfig):
    MODEL_FILES = ("vocab_path",)

    number: float = 0.0
    vocab_path: str = ""


@cfg.base_config.bind(NumberConfig)
class NumberTask:
    """A task whose model is a number."""

    def __init__(self, params: NumberConfig) -> None:
        self._number = params.number

    def build_model(self) -> float:
        return self._number


@dataclasses.dataclass
class LineConfig(cfg.TaskConfig):
    """A config without fields of its own."""


class Line(base_task.Task):
    """A task that fits a line with the model passed to it and a layer of its own."""

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


def with_nested_choices() -> keras.Model:
    def inner() -> keras.layers.Layer:
        candidates = {"3": lambda: keras.layers.Dense(3), "4": lambda: keras.layers.Dense(4)}
        return nas.LayerChoice(candidates, label="inner")

    def deep() -> keras.Model:
        return keras.Sequential([nas.Repeat(lambda _: inner(), (0, 1), label="depth")])

    inputs = keras.Input((2,))
    outer = nas.LayerChoice({"skip": keras.layers.Identity, "deep": deep}, label="outer")
    return keras.Model(inputs, outer(inputs))


def test_search_trial_may_contain_choices_nested_in_a_candidate_that_it_does_not_select(
    tmp_path,
) -> None:
    space = {"outer": ["skip", "deep"], "depth": [0, 1], "inner": ["3", "4"]}
    trainer = search.FunctionalTrainer(lambda model: model.count_params())
    experiment = search.Experiment(
        with_nested_choices, trainer, space, "grid", direction="minimize"
    )
    study = experiment.run(str(tmp_path))
    assert sorted(trial.value for trial in study.trials) == [0, 0, 0, 0, 0, 0, 9, 12]
    with (
        pytest.raises(errors.ConfigValueError, match=r"no choice `iner`\. Did you mean `inner`"),
        nas.fixed_arch({"outer": "skip", "iner": "3"}),
    ):
        with_nested_choices()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("base_model", "sizes", "strategy", "devices"),
    [
        (by_function, BY_UNITS, "mirrored", [0, 1]),
        (WithChoices, BY_LAYERS, "one_device", None),
        ("functional", BY_LAYERS, "mirrored", None),
    ],
)
def test_candidate_models_are_built_in_the_strategy_scope_of_their_run(
    base_model, sizes, strategy, devices, tmp_path
) -> None:
    base_model = functional() if base_model == "functional" else base_model
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
    experiment = search.Experiment(
        base_model,
        search.TaskTrainer(Line, params),
        {"units": ["1", "2"]} if base_model is by_function else None,
        "grid",
        direction="minimize",
        metric="num_parameters",
    )
    study = experiment.run(str(tmp_path))
    assert {t.params["units"]: t.value for t in study.trials} == {
        units: size + HEAD for units, size in sizes.items()
    }
    assert [list(t.intermediate_values) for t in study.trials] == [[1, 2], [1, 2]]
