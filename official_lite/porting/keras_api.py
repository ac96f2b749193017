"""The public API of the installed Keras, read from its files because importing it is slow."""

import ast
import functools
import importlib.util
import pathlib

__all__ = ["missing"]


def missing(name: str) -> str | None:
    """Return the shortest prefix of a dotted name that Keras lacks; None if it has the name.

    Only packages and their members are checked; members of classes are assumed to exist.
    """
    api = _api()
    if not api:
        return None
    parts = name.split(".")
    package = parts[0]
    for part in parts[1:]:
        if part not in api[package] and not part.startswith("__"):
            return f"{package}.{part}"
        package = f"{package}.{part}"
        if package not in api:
            return None
    return None


@functools.cache
def _api() -> dict[str, set[str]]:
    """Return the names in each public package of Keras."""
    spec = importlib.util.find_spec("keras")
    if spec is None or not spec.submodule_search_locations:
        return {}
    root = pathlib.Path(spec.submodule_search_locations[0])
    api = {}
    for path in root.rglob("__init__.py"):
        parts = path.parent.relative_to(root).parts
        if parts and parts[0] in ("src", "_tf_keras"):
            continue
        api[".".join(("keras", *parts))] = _names(path)
    return api


def _names(path: pathlib.Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names
