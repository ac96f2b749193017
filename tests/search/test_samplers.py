"""Search strategies, whose samples depend only on the study, and pruners."""

import itertools
import math
import pathlib

import optuna
import pytest
from optuna import distributions

from official_lite import search
from official_lite.common import errors
from official_lite.search import samplers, search_config
from tests.search import toys

STRATEGIES = pytest.mark.parametrize(
    "strategy", ["random", "tpe", "cma_es", "nsga2", "regularized_evolution"]
)

POINTS = {"a": [1, 2, 3], "b": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.5}}
SPACE = {f"x{n}": distributions.CategoricalDistribution(range(8)) for n in range(4)}
SETTINGS = {
    "hyperband": {"min_resource": 1, "max_resource": 9, "reduction_factor": 3},
}


def _tried(study) -> list[dict]:
    return [trial.params for trial in study.get_trials()]


def _small(strategy: str) -> dict:
    """Return the config of a strategy that learns from earlier trials after only a few trials."""
    arguments = {
        "tpe": {"n_startup_trials": 4},
        "nsga2": {"population_size": 4},
        "regularized_evolution": {"population_size": 4, "sample_size": 2},
        "cma_es": {"popsize": 4},
    }
    return {"name": strategy, **arguments.get(strategy, {})}


def _run(strategy: str, study_dir: pathlib.Path, num_trials: int) -> list[dict]:
    searched = {**toys.SPACE, "y": {"type": "float", "low": 0.0, "high": 1.0}}
    config = toys.config(space=searched, strategy=_small(strategy), num_trials=num_trials)
    return _tried(search.run_study(toys.parabola, config, str(study_dir)))


@pytest.mark.sample(2)
@STRATEGIES
def test_resumed_study_samples_the_same_values_as_an_uninterrupted_one(
    strategy: str, tmp_path
) -> None:
    _run(strategy, tmp_path / "broken", 7)
    whole = _run(strategy, tmp_path / "whole", 14)
    assert _run(strategy, tmp_path / "broken", 14) == whole
    # Crossover may produce the same values again.
    assert len({str(params) for params in whole}) > 10


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("strategy", "num_drawn"),
    [("tpe", 1), ("regularized_evolution", 0), ("random", 1), ("cma_es", 1), ("nsga2", 0)],
)
def test_trial_interrupted_while_sampling_gets_the_same_values_when_resumed(
    strategy: str, num_drawn: int, tmp_path, monkeypatch
) -> None:
    _run(strategy, tmp_path / "broken", 7)

    def break_off(self: search_config.Space, trial: optuna.trial.Trial) -> None:
        for name, one in list(self.distributions.items())[:num_drawn]:
            trial._suggest(name, one)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(search_config.Space, "suggest", break_off)
        with pytest.raises(KeyboardInterrupt):
            _run(strategy, tmp_path / "broken", 8)
    assert _run(strategy, tmp_path / "broken", 9) == _run(strategy, tmp_path / "whole", 9)


def test_grid_search_evaluates_each_point_once_and_then_ends(tmp_path) -> None:
    config = toys.config(space=POINTS, strategy="grid", num_trials=100)
    study = search.run_study(lambda trial: trial.params["a"], config, str(tmp_path))
    assert len(study.trials) == 9
    assert len({str(params) for params in _tried(study)}) == 9


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"strategy": "regularised_evolution"}, "`regularized_evolution`"),
        ({"strategy": {"name": "tpe", "n_startup": 3}}, "`n_startup_trials`"),
        ({"strategy": {"name": "nsga2", "population_size": 1}}, "population_size"),
        ({"strategy": {"name": "regularized_evolution", "sample_size": 101}}, "sample_size"),
        ({"strategy": "grid"}, r"\['x'\]"),
        ({"strategy": "cma_es", "direction": ["minimize", "maximize"]}, "nsga2"),
        ({"pruner": "medain"}, "`median`"),
        ({"pruner": {"name": "median", "n_startup": 3}}, "`n_startup_trials`"),
        ({"pruner": {"name": "hyperband", "max_resource": "x"}}, "hyperband"),
    ],
)
def test_error_for_an_invalid_strategy_or_pruner_suggests_the_remedy(fields, words: str) -> None:
    config = toys.config(**fields)
    with pytest.raises(errors.ConfigError, match=words):
        samplers.create_sampler(config, search.Space(config.space)), samplers.create_pruner(config)


def _study(num_trials: int, seed: int = 0, **sizes: int) -> optuna.Study:
    sampler = samplers.RegularizedEvolutionSampler(seed=seed, **sizes)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    for _ in range(num_trials):
        trial = study.ask(SPACE)
        study.tell(trial, sum(trial.params.values()))
    return study


def test_evolved_trial_differs_in_one_value_from_a_trial_in_the_population() -> None:
    trials = _study(40, population_size=10, sample_size=3).trials
    for index, trial in enumerate(trials[10:], start=10):
        differences = [
            sum(trial.params[name] != parent.params[name] for name in SPACE)
            for parent in trials[index - 10 : index]
        ]
        assert 1 in differences


def test_evolution_selects_the_best_trial_of_its_sample_as_parent() -> None:
    """A sample as large as the population contains the best trial of the population."""
    trials = _study(30, population_size=5, sample_size=5).trials
    for index, trial in enumerate(trials[5:], start=5):
        best = max(trials[index - 5 : index], key=lambda t: t.values)
        assert sum(trial.params[name] != best.params[name] for name in SPACE) == 1


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_evolution_never_uses_a_pruned_trial_without_a_finite_value_as_parent(value: float) -> None:
    sampler = samplers.RegularizedEvolutionSampler(population_size=3, sample_size=3, seed=0)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    for number in range(8):
        trial = study.ask(SPACE)
        if number == 2:
            trial.report(value, 1)
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, float(number))
    (pruned, *others) = study.trials[2:]
    assert sum(pruned.params[name] != others[-1].params[name] for name in SPACE) > 1
    for parent, child in itertools.pairwise(others[2:]):
        assert sum(parent.params[name] != child.params[name] for name in SPACE) == 1


def test_regularized_evolution_approaches_the_minimum() -> None:
    sampler = samplers.RegularizedEvolutionSampler(population_size=5, sample_size=5, seed=1)
    study = optuna.create_study(sampler=sampler)
    for _ in range(60):
        trial = study.ask(SPACE)
        study.tell(trial, sum(trial.params.values()))
    assert study.best_value <= 3


def _steps(study_dir: pathlib.Path) -> int:
    notes = study_dir.glob("trials/*/notes.txt")
    return sum(len(path.read_text().splitlines()) for path in notes)


@pytest.mark.parametrize("pruner", list(SETTINGS))
def test_pruner_ends_bad_trials_early_but_not_the_best_trial(pruner: str, tmp_path) -> None:
    config = toys.config(pruner={"name": pruner, **SETTINGS[pruner]}, num_trials=20)
    study = search.run_study(toys.curve, config, str(tmp_path))
    states = [trial.state.name for trial in study.trials]
    assert set(states) == {"COMPLETE", "PRUNED"}
    assert _steps(tmp_path) < 20 * 9
    assert study.best_trial.value == min(t.value for t in study.trials)
    pruned = next(trial for trial in study.trials if trial.state.name == "PRUNED")
    assert pruned.value == pruned.intermediate_values[max(pruned.intermediate_values)]
