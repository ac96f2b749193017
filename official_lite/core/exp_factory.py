"""Experiments by name: a factory makes a fresh config for each call.

They are registered by modules that something has imported: `registry_imports.py`, `--import`, or an
entry point of an installed package::

    [project.entry-points."official_lite.experiments"]
    acme = "acme_experiments.configs"

No TensorFlow is imported here: listing experiments and refusing a config stay quick.
"""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from official_lite.common import error_report, errors, origins, plugins, registry

if TYPE_CHECKING:
    from official_lite.core import config_definitions as cfg

__all__ = [
    "get_config_factory",
    "get_exp_config",
    "get_origin",
    "list_experiments",
    "register_config_factory",
]

ENTRY_POINTS = "official_lite.experiments"

Factory = TypeVar("Factory", bound="Callable[[], cfg.ExperimentConfig]")

_REGISTERED_CONFIGS: registry.Collection = {}


def register_config_factory(name: str) -> Callable[[Factory], Factory]:
    """A decorator for a function without arguments that returns an `ExperimentConfig`.

    Raises:
        DuplicateNameError: (a `KeyError`) `name` already belongs to another factory.
    """
    return registry.register(_REGISTERED_CONFIGS, name)


def get_exp_config(exp_name: str) -> "cfg.ExperimentConfig":
    """A new config of the experiment.

    Args:
        exp_name: A registered name, or the factory itself as `my_package.configs:my_experiment`
            or `my_configs.py:my_experiment`.

    Raises:
        UnknownNameError: (a `LookupError`) There is none of that name; says the nearest ones.
        ConfigTypeError: The factory returned nothing.
        ConfigError: What it asks for is wrong, such as a field that there is not; says its line.
    """
    factory = _find(exp_name)
    with error_report.naming_the_line():
        config = factory()
    if config is None:
        raise errors.ConfigTypeError(
            f"The factory of experiment {exp_name!r} returned None; it must return the config."
        )
    return config


def get_config_factory(exp_name: str) -> "Callable[[], cfg.ExperimentConfig | None]":
    """The factory of an experiment's config, for what it says of itself.

    Args:
        exp_name: As for `get_exp_config`.

    Raises:
        UnknownNameError: (a `LookupError`) There is none of that name; says the nearest ones.
    """
    return _find(exp_name)


def list_experiments() -> list[str]:
    """The registered names, in alphabetical order."""
    plugins.import_group(ENTRY_POINTS)
    return registry.names(_REGISTERED_CONFIGS)


def get_origin(exp_name: str) -> str:
    """The module that registers an experiment; the path of one that was imported as a file.

    Raises:
        UnknownNameError: (a `LookupError`) There is none of that name.
    """
    return origins.module_of(inspect.unwrap(_find(exp_name)))


def _find(exp_name: str) -> "Callable[[], cfg.ExperimentConfig | None]":
    left_out = plugins.import_group(ENTRY_POINTS)
    try:
        found: Callable[[], cfg.ExperimentConfig | None] = plugins.resolve(
            exp_name, registry=_REGISTERED_CONFIGS, kind="experiment"
        )
    except errors.UnknownNameError as error:
        if not left_out:
            raise
        # It may be what they would have registered.
        raise errors.UnknownNameError(" ".join([str(error), *left_out])) from error
    return found
