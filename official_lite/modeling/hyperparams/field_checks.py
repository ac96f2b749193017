"""Checks for `validate_fields`, which raise a `ConfigValueError` about the value of a field."""

from official_lite.modeling.hyperparams.params_dict import (
    require_not_negative,
    require_one_of,
    require_patterns,
    require_positive,
    require_positive_or_none,
    require_subdirectories,
)

__all__ = [
    "require_not_negative",
    "require_one_of",
    "require_patterns",
    "require_positive",
    "require_positive_or_none",
    "require_subdirectories",
]
