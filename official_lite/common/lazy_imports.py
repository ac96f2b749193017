"""Lazy imports: the public names of a module, listed in its stub and imported on first use."""

import ast
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["attach_stub"]


def attach_stub(importer: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return the `__getattr__` and the `__all__` of a module whose names are listed in a stub.

    The stub `__init__.pyi` next to `__init__.py` lists each name once, as type checkers require::

        from official_lite.nas.choices import Cell as Cell

    The module imports `Cell` when it is used for the first time::

        __getattr__, __all__ = lazy_imports.attach_stub(__name__, __file__)

    This is the convention of SPEC 1 of Scientific Python.

    Args:
        importer: The `__name__` of the module. The modules of a package are found, too.
        file: The `__file__` of the module.
    """
    tree = ast.parse(pathlib.Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    sources = {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        module = sys.modules[importer]
        if name in sources:
            found = getattr(importlib.import_module(sources[name]), name)
            setattr(module, name, found)
            return found
        # `from package import module` asks for an attribute before it imports the module.
        if not name.startswith("_") and hasattr(module, "__path__"):
            if importlib.util.find_spec(f"{importer}.{name}"):
                return importlib.import_module(f"{importer}.{name}")
        raise AttributeError(f"module {importer!r} has no attribute {name!r}")

    return find, [*sources]
