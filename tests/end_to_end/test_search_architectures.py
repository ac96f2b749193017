"""Studies over architecture choices: the 64 architectures for digits."""

import json
import statistics

import pytest

from experiments.nas.digits import configs, table
from experiments.nas.digits.task import NasDigitsTask
from official_lite import nas, search

# The mean accuracy of each architecture in the table, by the name of the architecture.
MEANS = {name: statistics.mean(values) for name, values in table.accuracies().items()}
SMALL = {"name": "regularized_evolution", "population_size": 10, "sample_size": 4}


def _space() -> dict:
    return nas.space_of(NasDigitsTask(configs.nas_digits().task).build_model())


@pytest.mark.parametrize("strategy", ["tpe", SMALL])
def test_search_strategy_finds_a_top_ten_architecture_within_32_trials(strategy, tmp_path) -> None:
    trainer = search.FunctionalTrainer(lambda arch: MEANS[table.name_of(arch)])
    experiment = search.Experiment(dict, trainer, _space(), strategy, direction="maximize")
    experiment.run(str(tmp_path), num_trials=32)
    (found,) = experiment.export_top_models(1)
    assert sorted(MEANS.values())[-10:][0] <= MEANS[table.name_of(found)]


def test_grid_search_evaluates_every_architecture_once(tmp_path) -> None:
    trainer = search.FunctionalTrainer(lambda arch: MEANS[table.name_of(arch)])
    experiment = search.Experiment(dict, trainer, _space(), "grid", direction="maximize")
    study = experiment.run(str(tmp_path), num_trials=100)
    assert sorted(trial.value for trial in study.trials) == sorted(MEANS.values())


@pytest.mark.slow
def test_one_search_samples_both_architecture_choices_and_config_fields(tmp_path) -> None:
    params = configs.nas_digits()
    rate = "trainer.optimizer_config.learning_rate.constant.learning_rate"
    params.override(
        {
            "trainer": {"train_steps": 4, "validation_steps": 1, "writers": ["jsonl"]},
            "search": {
                "space": {"task": {"arch": _space()}, rate: [1e-3, 1e-2]},
                "metric": ["accuracy", "num_parameters"],
                "direction": ["maximize", "minimize"],
                "strategy": {"name": "nsga2", "population_size": 2},
                "num_trials": 2,
            },
        }
    )
    study = search.run_search(params, str(tmp_path))
    weights = {"conv3": 9 * 64 + 8, "conv1": 64 + 8, "avgpool": 0, "zero": 0}
    for trial in study.trials:
        chosen = [trial.params[f"task.arch.layer{number}"] for number in range(3)]
        assert trial.values[1] == 16 + 90 + sum(weights[name] for name in chosen)
    (first, *_) = json.loads((tmp_path / "top_k.json").read_text())
    assert set(first["params"]) == {rate, *(f"task.arch.layer{n}" for n in range(3))}
