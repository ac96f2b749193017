"""Checks shared by the `validate_fields` methods of several configs.

Each check raises a `ConfigValueError` if the value of a field is invalid.
"""

import math
import re
from collections.abc import Sequence

from official_lite.common import errors, files, suggestions
from official_lite.modeling.hyperparams import base_config

__all__ = [
    "require_not_negative",
    "require_one_of",
    "require_patterns",
    "require_positive",
    "require_positive_or_none",
    "require_subdirectories",
]


def require_one_of(config: base_config.Config, name: str, allowed: Sequence[str]) -> None:
    value = getattr(config, name)
    if value.lower() not in allowed:
        raise errors.ConfigValueError(
            f"`{name}` is {value!r}. {suggestions.did_you_mean(value, allowed)}"
        )


def require_not_negative(config: base_config.Config, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 0:
            raise errors.ConfigValueError(
                f"`{name}` is {getattr(config, name)}; expected 0 or a positive number."
            )


def require_positive(config: base_config.Config, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise errors.ConfigValueError(
                f"`{name}` is {getattr(config, name)}; expected a positive number."
            )


def require_positive_or_none(config: base_config.Config, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise errors.ConfigValueError(
                f"`{name}` is {value}; expected a positive number, or null."
            )


def require_subdirectories(config: base_config.Config, *names: str) -> None:
    for name in names:
        files.require_subdirectory(getattr(config, name), name)


def require_patterns(config: base_config.Config, *names: str) -> None:
    for name in names:
        for pattern in getattr(config, name):
            try:
                re.compile(pattern)
            except re.error as error:
                raise errors.ConfigValueError(
                    f"`{name}` has {pattern!r}, which is not a valid regular expression: {error}."
                ) from error
