"""The strategies: how the next trial is chosen. All but one are Optuna's."""

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
    """The sampler that `search.strategy` names.

    Raises:
        errors.ConfigError: There is none, or it can't search this space.
    """
    name = search_config.name_of(config.strategy)
    if len(config.directions) > 1 and name in _OF_ONE_OBJECTIVE:
        raise errors.ConfigValueError(
            f"The strategy {name!r} knows a single metric; for {len(config.directions)} of them "
            "take `nsga2`, `tpe`, `random` or `grid`."
        )
    if name == "grid" and space.size is None:
        endless = [n for n, one in space.distributions.items() if getattr(one, "step", 1) is None]
        raise errors.ConfigValueError(
            f"A grid needs a `step`, or choices, for each path; {endless} have no end of values."
        )
    create = plugins.factory(
        search_config.entry_of(config.strategy),
        registry=_SAMPLERS,
        base=samplers.BaseSampler,
        kind="strategy",
    )
    sampler = SeededSampler(create, config.seed)
    try:
        sampler.reseed(0)
    except (ImportError, TypeError, ValueError) as error:
        raise errors.ConfigValueError(f"`search.strategy` {name!r}: {error}") from error
    return sampler


def num_points(config: search_config.SearchConfig, space: Space) -> int:
    """How many trials there will be: `num_trials`, or fewer if a grid has no more points."""
    if search_config.name_of(config.strategy) != "grid" or space.size is None:
        return config.num_trials
    return min(config.num_trials, space.size)


class SeededSampler(samplers.BaseSampler):
    """Makes a sampler anew for each trial, with a seed from the number of the trial.

    What is drawn for a trial then depends on the study alone, not on the process that draws: a
    study that goes on after a break has the trials that it would have had, and several workers
    don't draw the same. Optuna's samplers keep nothing else than random numbers in memory.

    Args:
        create: Makes the sampler, given its `seed`.
        seed: That of the study.
    """

    def __init__(self, create: Callable[..., samplers.BaseSampler], seed: int) -> None:
        self._create = create
        self._seed = seed
        self._sampler: samplers.BaseSampler
        self._relative: dict[str, Any] | None = None

    def reseed(self, trial_number: int) -> None:
        """Makes the sampler of a trial."""
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
        """Draws what a trial that was broken off between two draws has, for the next to follow."""
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
    """Each point of the space once, in any order.

    Optuna's own ends `study.optimize` after the last one, and fails where there is none to end.
    """

    def after_trial(
        self,
        study: optuna.Study,
        trial: trial.FrozenTrial,
        state: trial.TrialState,
        values: Sequence[float] | None,
    ) -> None:
        del study, trial, state, values
