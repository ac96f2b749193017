"""Strategies, which choose the next trial; all but regularized evolution come from Optuna."""

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import optuna
from optuna import distributions, samplers, trial

from official_lite.common import errors, plugins, registry
from official_lite.search import search_config
from official_lite.search.space import Space

__all__ = ["GridSampler", "SeededSampler", "create_sampler", "num_points"]

_SAMPLERS: registry.Collection = {
    "random": "optuna.samplers:RandomSampler",
    "grid": "official_lite.search.samplers:GridSampler",
    "tpe": "optuna.samplers:TPESampler",
    "cma_es": "optuna.samplers:CmaEsSampler",
    "nsga2": "optuna.samplers:NSGAIISampler",
    "regularized_evolution": "official_lite.search.evolution:RegularizedEvolutionSampler",
}
_OF_ONE_OBJECTIVE = ("cma_es", "regularized_evolution")


def create_sampler(config: search_config.SearchConfig, space: Space) -> samplers.BaseSampler:
    """Create the sampler that `search.strategy` names.

    Raises:
        errors.ConfigError: If the sampler is unknown or can't search this space.
    """
    name = search_config.name_of(config.strategy)
    if len(config.directions) > 1 and name in _OF_ONE_OBJECTIVE:
        raise errors.ConfigValueError(
            f"The strategy {name!r} supports a single metric. For {len(config.directions)} "
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
        raise errors.ConfigValueError(f"`search.strategy` {name!r}: {error}") from error


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
        # `before_trial` is optional: Optuna may ask for a value without having called it.
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
        self, study: optuna.Study, trial: trial.FrozenTrial
    ) -> dict[str, distributions.BaseDistribution]:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: trial.FrozenTrial,
        search_space: dict[str, distributions.BaseDistribution],
    ) -> dict[str, Any]:
        if self._relative is not None:
            return self._relative
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: trial.FrozenTrial,
        param_name: str,
        param_distribution: distributions.BaseDistribution,
    ) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: trial.FrozenTrial,
        state: trial.TrialState,
        values: Sequence[float] | None,
    ) -> None:
        self._sampler.after_trial(study, trial, state, values)

    def _draw_again(self, study: optuna.Study, trial: trial.FrozenTrial) -> dict[str, Any]:
        """Repeat the draws of a trial that was interrupted before it had all its values.

        This advances the random numbers of the sampler to where the trial was interrupted, so the
        remaining draws are the same as without the interruption.
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

    def after_trial(
        self,
        study: optuna.Study,
        trial: trial.FrozenTrial,
        state: trial.TrialState,
        values: Sequence[float] | None,
    ) -> None:
        del study, trial, state, values
