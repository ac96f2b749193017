"""Regularized evolution, the one strategy that Optuna does not provide."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
from optuna import distributions, samplers, trial

from official_lite.common import errors

__all__ = ["RegularizedEvolutionSampler"]

# With two choices, this many draws miss the one that differs from the parent's with a probability
# of about 1e-30.
_MOST_DRAWS = 100


class RegularizedEvolutionSampler(samplers.BaseSampler):
    """A sampler that mutates one parameter of the best trial in a sample of the population.

    Implements Real et al., "Regularized Evolution for Image Classifier Architecture Search", 2019.
    The population consists of the latest `population_size` trials that completed or were pruned, so
    every trial leaves it by age, however good it was. Pruned trials count with their last value;
    failed trials, and those whose last value is not finite, are not part of the population. Until
    the population is full, trials are random.

    Args:
        population_size: Number of trials in the population.
        sample_size: Number of trials to draw from the population; the best one is the parent.
        seed: Seed of the random numbers.

    Raises:
        errors.ConfigValueError: If the sizes are out of range.
    """

    def __init__(
        self, population_size: int = 100, sample_size: int = 25, seed: int | None = None
    ) -> None:
        if not 1 <= sample_size <= population_size:
            raise errors.ConfigValueError(
                f"`sample_size` is {sample_size} and `population_size` is {population_size}; "
                "expected 1 <= `sample_size` <= `population_size`."
            )
        self._population_size = population_size
        self._sample_size = sample_size
        self._random = np.random.default_rng(seed)
        self._independent = samplers.RandomSampler(seed=seed)
        # The parent of each running trial and the name of the parameter to mutate, by trial number.
        # Trials may run in several threads.
        self._mutations: dict[int, tuple[trial.FrozenTrial, str | None]] = {}

    def reseed_rng(self) -> None:
        self._random = np.random.default_rng()
        self._independent.reseed_rng()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: trial.FrozenTrial
    ) -> dict[str, distributions.BaseDistribution]:
        return {}

    def sample_relative(
        self,
        study: optuna.Study,
        trial: trial.FrozenTrial,
        search_space: dict[str, distributions.BaseDistribution],
    ) -> dict[str, Any]:
        _require_one_objective(study)
        return {}

    def before_trial(self, study: optuna.Study, trial: trial.FrozenTrial) -> None:
        parent = self._parent(study)
        if parent is None:
            return
        names = [name for name, one in parent.distributions.items() if not one.single()]
        name = names[self._random.integers(len(names))] if names else None
        self._mutations[trial.number] = parent, name

    def sample_independent(
        self,
        study: optuna.Study,
        trial: trial.FrozenTrial,
        param_name: str,
        param_distribution: distributions.BaseDistribution,
    ) -> Any:
        _require_one_objective(study)
        parent, changed = self._mutations.get(trial.number, (None, None))
        # The range of a parameter may differ from trial to trial.
        inherited: dict[str, Any] = {}
        if parent is not None and parent.distributions.get(param_name) == param_distribution:
            inherited = parent.params
        if param_name in inherited and param_name != changed:
            return inherited[param_name]
        for _ in range(_MOST_DRAWS):
            value = self._independent.sample_independent(
                study, trial, param_name, param_distribution
            )
            if param_name not in inherited or value != inherited[param_name]:
                break
        return value

    def after_trial(
        self,
        study: optuna.Study,
        trial: trial.FrozenTrial,
        state: trial.TrialState,
        values: Sequence[float] | None,
    ) -> None:
        del study, state, values
        self._mutations.pop(trial.number, None)

    def _parent(self, study: optuna.Study) -> trial.FrozenTrial | None:
        ended = (trial.TrialState.COMPLETE, trial.TrialState.PRUNED)
        trials = [t for t in study.get_trials(deepcopy=False, states=ended) if _has_value(t)]
        if len(trials) < self._population_size:
            return None
        population = trials[-self._population_size :]
        drawn = self._random.choice(len(population), self._sample_size, replace=False)
        sign = 1 if study.direction == optuna.study.StudyDirection.MINIMIZE else -1
        return min((population[index] for index in drawn), key=lambda t: sign * t.values[0])


def _has_value(trial: trial.FrozenTrial) -> bool:
    # A pruned trial may have ended with a value that is not finite.
    return bool(trial.values) and math.isfinite(trial.values[0])


def _require_one_objective(study: optuna.Study) -> None:
    if len(study.directions) > 1:
        raise errors.ConfigValueError(
            f"Regularized evolution supports a single objective, got {len(study.directions)}."
        )
