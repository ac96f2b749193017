"""Strategies, which choose the next trial, and pruners, which end trials early.

All of them except regularized evolution are part of Optuna.
"""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
from optuna import distributions, pruners, samplers, trial

from official_lite.common import errors, plugins
from official_lite.search import search_config
from official_lite.search.search_config import Space

__all__ = [
    "GridSampler",
    "RegularizedEvolutionSampler",
    "SeededSampler",
    "create_pruner",
    "create_sampler",
    "num_points",
]

_SAMPLERS: plugins.Collection = {
    "random": "optuna.samplers:RandomSampler",
    "grid": "official_lite.search.samplers:GridSampler",
    "tpe": "optuna.samplers:TPESampler",
    "cma_es": "optuna.samplers:CmaEsSampler",
    "nsga2": "optuna.samplers:NSGAIISampler",
    "regularized_evolution": "official_lite.search.samplers:RegularizedEvolutionSampler",
}
_OF_ONE_OBJECTIVE = ("cma_es", "regularized_evolution")
# The maximum number of attempts to draw a choice other than the parent's. With two choices, the
# probability that all attempts fail is about 1e-30.
_MAX_DRAWS = 100
_PRUNERS: plugins.Collection = {
    "none": "optuna.pruners:NopPruner",
    "median": "optuna.pruners:MedianPruner",
    "successive_halving": "optuna.pruners:SuccessiveHalvingPruner",
    "hyperband": "optuna.pruners:HyperbandPruner",
    "threshold": "optuna.pruners:ThresholdPruner",
}


def create_sampler(config: search_config.SearchConfig, space: Space) -> samplers.BaseSampler:
    """Create the sampler that `search.strategy` names.

    Raises:
        errors.ConfigError: If the sampler is unknown or can't search this space.
    """
    name = search_config.name_of(config.strategy)
    if len(config.directions) > 1 and name in _OF_ONE_OBJECTIVE:
        raise errors.ConfigValueError(
            f"The strategy {name!r} supports only one metric. For {len(config.directions)} "
            "metrics use `nsga2`, `tpe`, `random` or `grid`."
        )
    if name == "grid" and space.size is None:
        endless = [n for n, one in space.distributions.items() if getattr(one, "step", 1) is None]
        raise errors.ConfigValueError(
            f"A grid requires a `step` or choices for each path; {endless} have infinitely many "
            "values."
        )
    create = plugins.factory(
        search_config.entry_of(config.strategy),
        registry=_SAMPLERS,
        base=samplers.BaseSampler,
        kind="strategy",
    )
    try:
        return SeededSampler(create, config.seed)
    except (ImportError, TypeError, ValueError) as error:
        raise errors.ConfigValueError(
            f"`search.strategy` is {name!r}, which can't be created: {error}"
        ) from error


def num_points(config: search_config.SearchConfig, space: Space) -> int:
    """Return the number of trials: `num_trials`, or the size of the grid if that is smaller."""
    if search_config.name_of(config.strategy) != "grid" or space.size is None:
        return config.num_trials
    return min(config.num_trials, space.size)


class SeededSampler(samplers.BaseSampler):
    """A sampler that is rebuilt for each trial, with a seed derived from the trial's number.

    The values of a trial then depend only on the study, not on the process that draws them. A
    resumed study runs the same trials as an uninterrupted one, and several workers don't draw the
    same values. Rebuilding loses nothing, because Optuna's samplers keep only their random number
    generators in memory.

    Args:
        create: Function that builds the sampler, given its `seed`.
        seed: The seed of the study.
    """

    def __init__(self, create: Callable[..., samplers.BaseSampler], seed: int) -> None:
        self._create = create
        self._seed = seed
        self._sampler: samplers.BaseSampler
        self._relative: dict[str, Any] | None = None
        # Optuna may request a value without calling `before_trial` first.
        self.reseed(0)

    def reseed(self, trial_number: int) -> None:
        """Rebuild the sampler for a trial."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._sampler = self._create(seed=(self._seed * 1_000_003 + trial_number) % 2**32)

    def before_trial(self, study: optuna.Study, trial: trial.FrozenTrial) -> None:
        self.reseed(trial.number)
        self._sampler.before_trial(study, trial)
        self._relative = self._draw_again(study, trial) if trial.params else None

    def infer_relative_search_space(
        self, *args: Any, **kwargs: Any
    ) -> dict[str, distributions.BaseDistribution]:
        return self._sampler.infer_relative_search_space(*args, **kwargs)

    def sample_relative(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if self._relative is not None:
            return self._relative
        return self._sampler.sample_relative(*args, **kwargs)

    def sample_independent(self, *args: Any, **kwargs: Any) -> Any:
        return self._sampler.sample_independent(*args, **kwargs)

    def after_trial(self, *args: Any, **kwargs: Any) -> None:
        self._sampler.after_trial(*args, **kwargs)

    def _draw_again(self, study: optuna.Study, trial: trial.FrozenTrial) -> dict[str, Any]:
        """Repeat the draws of a trial that was interrupted before it had all its values.

        This advances the sampler's random number generator to the point of the interruption, so the
        remaining draws are the same as in an uninterrupted trial.

        Returns:
            The values that the sampler's `sample_relative` draws for the trial.
        """
        bare = copy.copy(trial)
        bare.params, bare.distributions = {}, {}
        search_space = self._sampler.infer_relative_search_space(study, bare)
        relative = self._sampler.sample_relative(study, bare, search_space)
        for name, distribution in trial.distributions.items():
            if name not in relative and not distribution.single():
                self._sampler.sample_independent(study, bare, name, distribution)
            bare.params = {**bare.params, name: trial.params[name]}
            bare.distributions = {**bare.distributions, name: distribution}
        return relative


class GridSampler(samplers.BruteForceSampler):
    """A sampler that visits each point of the space once, in any order.

    Optuna's `BruteForceSampler` stops `study.optimize` after the last point and fails if
    `study.optimize` is not running. This class overrides `after_trial` to avoid that.
    """

    def after_trial(self, *args: Any, **kwargs: Any) -> None:
        pass


class RegularizedEvolutionSampler(samplers.BaseSampler):
    """A sampler that mutates one parameter of the best trial in a sample of the population.

    Implements Real et al., "Regularized Evolution for Image Classifier Architecture Search", 2019.
    The population consists of the latest `population_size` trials that completed or were pruned, so
    every trial leaves it by age, however good it was. Pruned trials are ranked by their last value;
    failed trials, and trials whose last value is not finite, are not part of the population. Until
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
        # Maps the number of each running trial to its parent and to the name of the parameter to
        # mutate. Several trials may be running at once, in different threads.
        self._mutations: dict[int, tuple[trial.FrozenTrial, str | None]] = {}

    def reseed_rng(self) -> None:
        self._random = np.random.default_rng()
        self._independent.reseed_rng()

    def infer_relative_search_space(
        self, *args: Any, **kwargs: Any
    ) -> dict[str, distributions.BaseDistribution]:
        return {}

    def sample_relative(self, study: optuna.Study, *args: Any, **kwargs: Any) -> dict[str, Any]:
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
        # Don't inherit the value if the parameter had a different range in the parent trial.
        inherited: dict[str, Any] = {}
        if parent is not None and parent.distributions.get(param_name) == param_distribution:
            inherited = parent.params
        if param_name in inherited and param_name != changed:
            return inherited[param_name]
        for _ in range(_MAX_DRAWS):
            value = self._independent.sample_independent(
                study, trial, param_name, param_distribution
            )
            if param_name not in inherited or value != inherited[param_name]:
                break
        return value

    def after_trial(
        self, study: optuna.Study, trial: trial.FrozenTrial, *args: Any, **kwargs: Any
    ) -> None:
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
    # A pruned trial may have ended with a non-finite value.
    return bool(trial.values) and math.isfinite(trial.values[0])


def _require_one_objective(study: optuna.Study) -> None:
    if len(study.directions) > 1:
        raise errors.ConfigValueError(
            f"Regularized evolution supports only one objective, got {len(study.directions)}. Use "
            "`nsga2` for several objectives."
        )


def create_pruner(config: search_config.SearchConfig) -> pruners.BasePruner:
    """Create the pruner that `search.pruner` names.

    The pruner sees the global training step. Its arguments `n_warmup_steps`, `min_resource` and
    `max_resource` therefore count training steps.

    Raises:
        errors.ConfigError: If the pruner is unknown or does not accept the arguments.
    """
    create = plugins.factory(
        search_config.entry_of(config.pruner),
        registry=_PRUNERS,
        base=pruners.BasePruner,
        kind="pruner",
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            pruner: pruners.BasePruner = create()
    except (TypeError, ValueError) as error:
        name = search_config.name_of(config.pruner)
        raise errors.ConfigValueError(
            f"`search.pruner` is {name!r}, which can't be created: {error}"
        ) from error
    return pruner
