"""Where a class or a function is from, as a user would say it.

A file that was loaded by its path has a module name of its own, which nobody has typed.
"""

import sys
from types import ModuleType
from typing import Any

__all__ = ["FILE_MODULES", "module_of", "name_of"]

# How the names of modules begin that were files.
FILE_MODULES = "official_lite_plugin_"


def module_of(thing: Any) -> str:
    """The module of a class or a function, or its own name; of a file that was loaded, its path."""
    name = str(thing.__name__ if isinstance(thing, ModuleType) else thing.__module__)
    if not name.startswith(FILE_MODULES):
        return name
    return str(getattr(sys.modules.get(name), "__file__", None) or name)


def name_of(thing: Any) -> str:
    """`package.module.Class`, or `path/to/file.py:Class`."""
    separator = ":" if thing.__module__.startswith(FILE_MODULES) else "."
    return f"{module_of(thing)}{separator}{thing.__qualname__}"
