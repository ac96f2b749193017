"""Trials that are functions, and models that are injected."""

import dataclasses
from typing import Any

from official_lite import search
from official_lite.core import config_definitions as cfg
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
