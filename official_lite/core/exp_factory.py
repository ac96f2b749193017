"""Experiments by name: a factory makes a fresh config for each call.

No TensorFlow is imported here: listing experiments and refusing a config stay quick.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from official_lite.common import errors, plugins, registry

if TYPE_CHECKING:
    from official_lite.core import config_definitions as cfg

__all__ = ["get_exp_config", "list_experiments", "register_config_factory"]

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
    """
    factory = plugins.resolve(exp_name, registry=_REGISTERED_CONFIGS, kind="experiment")
    config = factory()
    if config is None:
        raise errors.ConfigTypeError(
            f"The factory of experiment {exp_name!r} returned None; it must return the config."
        )
    return config


def list_experiments() -> list[str]:
    """The registered names, in alphabetical order."""
    return registry.names(_REGISTERED_CONFIGS)
