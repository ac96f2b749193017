"""Modules list and describe their public names, and packages import them by their own names."""

import ast
import importlib
import pathlib
import re
import types
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
MODULES = sorted(
    ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for p in (ROOT / "official_lite").rglob("*.py")
)
PACKAGES = [n for n in MODULES if (ROOT / n.replace(".", "/") / "__init__.py").exists()]


def _public_names(name: str) -> set[str]:
    """Return the names of the public classes and functions that a module defines."""
    return {
        attribute
        for attribute, value in vars(importlib.import_module(name)).items()
        if isinstance(value, type | types.FunctionType)
        and value.__module__.startswith(name)
        and not attribute.startswith("_")
    }


def test_every_module_has_a_docstring() -> None:
    assert [name for name in MODULES if not importlib.import_module(name).__doc__] == []


_SECTION = re.compile(r"( *)(Args|Attributes|Examples?|Notes?|Raises|Returns|Yields):")


def _docstrings(path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the source lines of each docstring in a file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    lines = path.read_text().splitlines()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            statement = node.body[0]
            yield statement.lineno, lines[statement.lineno - 1 : statement.end_lineno]


def _badly_indented(docstring: list[str]) -> Iterator[int]:
    """Yield the offsets of section lines that are indented by neither 4 nor at least 8 spaces."""
    header = None
    for offset, line in enumerate(docstring):
        indentation = len(line) - len(line.lstrip())
        if match := _SECTION.fullmatch(line):
            header = len(match[1])
        elif header is not None and line.strip():
            if indentation <= header:
                header = None
            elif indentation - header != 4 and indentation - header < 8:
                yield offset


def test_docstring_sections_are_indented_by_four_spaces() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{first + offset}"
        for folder in ("official_lite", "experiments", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for first, docstring in _docstrings(path)
        for offset in _badly_indented(docstring)
    ]
    assert found == []


def test_names_in_dunder_all_exist_in_their_modules() -> None:
    missing = []
    for name in MODULES:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", []):
            if f"{name}.{public}" in MODULES:
                # A package may list modules that it has not imported.
                importlib.import_module(f"{name}.{public}")
            if getattr(module, public, None) is None:
                missing.append(f"{name}.{public}")
    assert missing == []


def test_dunder_all_lists_all_public_names() -> None:
    unlisted = {}
    for name in MODULES:
        module = importlib.import_module(name)
        if hasattr(module, "__all__"):
            unlisted[name] = _public_names(name) - set(module.__all__)
    assert {name: names for name, names in unlisted.items() if names} == {}


def _nodes(name: str) -> list[ast.AST]:
    path = pathlib.Path(str(importlib.import_module(name).__file__))
    # A stub lists the names that a package imports on first use.
    sources = [p for p in (path, path.with_suffix(".pyi")) if p.exists()]
    return [node for p in sources for node in ast.walk(ast.parse(p.read_text()))]


def _problems_of_reexports(name: str) -> Iterator[str]:
    nodes = _nodes(name)
    imports = [n for n in nodes if isinstance(n, ast.ImportFrom)]
    aliases = [a for n in imports if (n.module or "").startswith(name) for a in n.names]
    aliases += [a for n in imports for a in n.names if a.asname]
    constants = {n.value for n in nodes if isinstance(n, ast.Constant)}
    for alias in aliases:
        if alias.asname != alias.name:
            yield f"{name}: import {alias.name} as {alias.name}"
        elif getattr(importlib.import_module(name), alias.name) is None:
            yield f"{name}.{alias.name} is None"
        elif alias.name in constants:
            yield f"{name}.{alias.name} is listed twice"


def test_packages_reexport_each_name_once_under_its_own_name() -> None:
    """Type checkers accept `from module import name as name` as a re-export."""
    # The top-level package is skipped, because all modules belong to it, but it re-exports none.
    names = [*PACKAGES, "official_lite.core.train_utils"]
    names.remove("official_lite")
    assert [problem for name in names for problem in _problems_of_reexports(name)] == []


def test_init_modules_have_at_most_40_lines() -> None:
    inits = (ROOT / "official_lite").rglob("__init__.py")
    assert [str(p) for p in inits if len(p.read_text().splitlines()) > 40] == []
