"""What ends a trial early, by the values that it reports on the way. All of them are Optuna's."""

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
    """The pruner that `search.pruner` names.

    The step that it sees is the global step of the training; that is what `n_warmup_steps`,
    `min_resource` and `max_resource` count.

    Raises:
        errors.ConfigError: There is none, or it takes other arguments.
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
