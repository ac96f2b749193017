"""The names of classes and functions as users write them.

A file that was loaded by its path has a generated module name, which users never see.
"""

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["FILE_MODULES", "described", "module_of", "name_of"]

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


def described(function: Callable[..., Any]) -> str:
    """Return the name of a function, and the file and line where it starts, for a message."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(inner, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"`{getattr(inner, '__qualname__', inner)}`{place}"
