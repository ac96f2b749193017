"""Pruners, which end trials early based on their intermediate values; all come from Optuna."""

import warnings

import optuna
from optuna import pruners

from official_lite.common import errors, plugins, registry
from official_lite.search import search_config

__all__ = ["create_pruner"]

_PRUNERS: registry.Collection = {
    "none": "optuna.pruners:NopPruner",
    "median": "optuna.pruners:MedianPruner",
    "successive_halving": "optuna.pruners:SuccessiveHalvingPruner",
    "hyperband": "optuna.pruners:HyperbandPruner",
    "threshold": "optuna.pruners:ThresholdPruner",
}


def create_pruner(config: search_config.SearchConfig) -> pruners.BasePruner:
    """Create the pruner that `search.pruner` names.

    The pruner sees the global step of the training. Its arguments `n_warmup_steps`, `min_resource`
    and `max_resource` therefore count training steps.

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
        raise errors.ConfigValueError(f"`search.pruner` {name!r}: {error}") from error
    return pruner
