"""Regularized evolution."""

import itertools
import math

import optuna
import pytest
from optuna import distributions

from official_lite.common import errors
from official_lite.search import evolution

SPACE = {f"x{n}": distributions.CategoricalDistribution(range(8)) for n in range(4)}


def _study(num_trials: int, seed: int = 0, **sizes: int) -> optuna.Study:
    sampler = evolution.RegularizedEvolutionSampler(seed=seed, **sizes)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    for _ in range(num_trials):
        trial = study.ask(SPACE)
        study.tell(trial, sum(trial.params.values()))
    return study


def test_child_differs_from_a_living_trial_in_one_value() -> None:
    trials = _study(40, population_size=10, sample_size=3).trials
    for index, trial in enumerate(trials[10:], start=10):
        differences = [
            sum(trial.params[name] != parent.params[name] for name in SPACE)
            for parent in trials[index - 10 : index]
        ]
        assert 1 in differences


def test_parent_is_the_best_of_the_sample() -> None:
    """With a sample as large as the population it is the best one that lives."""
    trials = _study(30, population_size=5, sample_size=5).trials
    for index, trial in enumerate(trials[5:], start=5):
        best = max(trials[index - 5 : index], key=lambda t: t.values)
        assert sum(trial.params[name] != best.params[name] for name in SPACE) == 1


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_pruned_trial_without_a_finite_value_is_never_a_parent(value: float) -> None:
    sampler = evolution.RegularizedEvolutionSampler(population_size=3, sample_size=3, seed=0)
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


def test_it_finds_better_trials_than_chance() -> None:
    evolved = _study(120, population_size=20, sample_size=10).best_value
    assert evolved >= 26
    assert max(trial.value for trial in _study(120, population_size=120).trials) < evolved


def test_sample_is_not_larger_than_the_population() -> None:
    with pytest.raises(errors.ConfigValueError, match="sample_size"):
        evolution.RegularizedEvolutionSampler(population_size=5, sample_size=6)


def test_minimum_is_found_by_the_same_means() -> None:
    sampler = evolution.RegularizedEvolutionSampler(population_size=5, sample_size=5, seed=1)
    study = optuna.create_study(sampler=sampler)
    for _ in range(60):
        trial = study.ask(SPACE)
        study.tell(trial, sum(trial.params.values()))
    assert study.best_value <= 3
