"""The names of classes and functions as users write them.

A file that was loaded by its path has a generated module name, which users never see.
"""

import sys
from types import ModuleType
from typing import Any

__all__ = ["FILE_MODULES", "module_of", "name_of"]

# The prefix of generated module names of files.
FILE_MODULES = "official_lite_plugin_"


def module_of(thing: Any) -> str:
    """Return the module name of a class, function or module; for a loaded file, its path."""
    name = str(thing.__name__ if isinstance(thing, ModuleType) else thing.__module__)
    if not name.startswith(FILE_MODULES):
        return name
    return str(getattr(sys.modules.get(name), "__file__", None) or name)


def name_of(thing: Any) -> str:
    """Return `package.module.Class` or `path/to/file.py:Class`."""
    separator = ":" if thing.__module__.startswith(FILE_MODULES) else "."
    return f"{module_of(thing)}{separator}{thing.__qualname__}"
