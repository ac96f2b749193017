"""The registry of experiments, in which a name refers to a factory of configs.

Modules register experiments when they are imported: by `registry_imports.py`, by `--import`, or
through an entry point of an installed package::

    [project.entry-points."official_lite.experiments"]
    acme = "acme_experiments.configs"

This module does not import TensorFlow, so that listing experiments and rejecting a config stay
fast.
"""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from official_lite.common import error_report, errors, plugins

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

_REGISTERED_CONFIGS: plugins.Collection = {}


def register_config_factory(name: str) -> Callable[[Factory], Factory]:
    """Return a decorator that registers a factory of an experiment's config.

    The factory takes no arguments and returns an `ExperimentConfig`.

    Raises:
        DuplicateNameError: (a `KeyError`) If `name` already belongs to another factory.
    """
    return plugins.register(_REGISTERED_CONFIGS, name)


def get_exp_config(exp_name: str) -> "cfg.ExperimentConfig":
    """Create a new config of an experiment.

    Args:
        exp_name: A registered name, or the path of a factory, such as
            `my_package.configs:my_experiment` or `my_configs.py:my_experiment`.

    Raises:
        UnknownNameError: (a `LookupError`) If the experiment is unknown. The message lists the
            nearest names.
        ConfigTypeError: If the factory returned None or has required arguments.
        ConfigError: If the factory builds an invalid config, for example with an unknown field.
            The message shows the line of the factory.
    """
    factory = get_config_factory(exp_name)
    plugins.require_signature(factory, "Make its arguments fields of the config.")
    try:
        config = factory()
    except errors.ConfigError as error:
        error_report.name_the_line(error)
        raise
    if config is None:
        raise errors.ConfigTypeError(
            f"The factory of experiment {exp_name!r} returned None; it must return the config."
        )
    return config


def get_config_factory(exp_name: str) -> "Callable[[], cfg.ExperimentConfig | None]":
    """Return the factory of an experiment's config, for example to read its docstring.

    Args:
        exp_name: As for `get_exp_config`.

    Raises:
        UnknownNameError: (a `LookupError`) If the experiment is unknown. The message lists the
            nearest names.
    """
    left_out = plugins.import_group(ENTRY_POINTS)
    try:
        found: Callable[[], cfg.ExperimentConfig | None] = plugins.resolve(
            exp_name, registry=_REGISTERED_CONFIGS, kind="experiment"
        )
    except errors.UnknownNameError as error:
        if not left_out:
            raise
        # The name may be registered by one of the packages that failed to import.
        raise errors.UnknownNameError(" ".join([str(error), *left_out])) from error
    return found


def list_experiments() -> list[str]:
    """Return the registered names in alphabetical order."""
    plugins.import_group(ENTRY_POINTS)
    return plugins.names(_REGISTERED_CONFIGS)


def get_origin(exp_name: str) -> str:
    """Return the module that registers an experiment, or its path if it was imported as a file.

    Raises:
        UnknownNameError: (a `LookupError`) If the experiment is unknown.
    """
    return plugins.module_of(inspect.unwrap(get_config_factory(exp_name)))
