"""Gin from the command line: `--gin_file`, `--gin_params` and `--safe_config`."""

import importlib
from typing import Any

from official_lite.core import gin_config

__all__ = ["parse_gin_flags"]

# What a gin file may name registers itself when these are imported; this is where TensorFlow comes
# in, and only if there is any gin to parse.
_CONFIGURABLES = ("official_lite.core.train_lib",)


def parse_gin_flags(flags_obj: Any) -> None:
    """Parses the gin files and bindings of the flags; call it before `parse_configuration`.

    Raises:
        errors.ConfigValueError: See `gin_config.parse_gin`.
    """
    if not flags_obj.gin_file and not flags_obj.gin_params:
        return
    for module in _CONFIGURABLES:
        importlib.import_module(module)
    safe = "safe_config" in flags_obj and flags_obj.safe_config
    gin_config.parse_gin(flags_obj.gin_file, flags_obj.gin_params, safe=safe)
