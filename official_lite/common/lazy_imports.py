"""Lazy imports: names of a module that are imported on first use, because the import is slow."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["names_from"]


def names_from(importer: str, *modules: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module that offers the names of other modules.

    The modules are imported when a name is not found otherwise. Type checkers don't see this, so
    list the names for them::

        if TYPE_CHECKING:
            from official_lite.nas.cell import Cell as Cell
        else:
            __getattr__ = lazy_imports.names_from(__name__, ".cell")

    Args:
        importer: The `__name__` of the module. The modules of a package are found, too.
        *modules: The names of the other modules, relative to a package or absolute. Each must
            define an `__all__`.
    """

    def find(name: str) -> Any:
        module = sys.modules[importer]
        if name.startswith("_"):
            raise AttributeError(f"module {importer!r} has no attribute {name!r}")
        # `from package import module` asks for an attribute before it imports the module.
        if hasattr(module, "__path__") and importlib.util.find_spec(f"{importer}.{name}"):
            return importlib.import_module(f"{importer}.{name}")
        for source in (importlib.import_module(each, importer) for each in modules):
            if name in source.__all__:
                found = getattr(source, name)
                setattr(module, name, found)
                return found
        raise AttributeError(f"module {importer!r} has no attribute {name!r}")

    return find
