"""Collection of the Model Garden modules that a project needs and `official_lite` lacks.

A module is copied whole, together with the modules that it imports. From a package's `__init__`,
which imports much more than a project needs, only the names that are used are copied.
"""

import ast
import pathlib
from collections.abc import Iterable, Iterator, Mapping

from official_lite.common import errors
from official_lite.porting.symbol_map import (
    dotted_name,
    has_name,
    module_file,
    package_folder,
    parents,
    top_level_names,
)

__all__ = ["gather", "imported_names"]


def gather(sources: Iterable[str]) -> Mapping[str, str]:
    """Return the source of the modules that the given sources need, by module name.

    The sources are unchanged, except for the `__init__` files of packages.

    Raises:
        ConfigValueError: The Model Garden is not installed.
    """
    folder = package_folder("official")
    if folder is None:
        raise errors.ConfigValueError(
            "The port copies modules from the installed Model Garden, which was not found: pip "
            "install --no-deps tf-models-official"
        )
    gatherer = _Gatherer(folder)
    for source in sources:
        gatherer.add_imports_of(ast.parse(source))
    return gatherer.texts()


class _Gatherer:
    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._whole: dict[str, str] = {}
        # Per package: import statements by the name that they bind.
        self._imports: dict[str, dict[str, str]] = {}

    def texts(self) -> Mapping[str, str]:
        packages = {
            parent for module in [*self._whole, *self._imports] for parent in parents(module)
        }
        texts = {package: _package_text(package, {}) for package in packages}
        texts |= {
            package: _package_text(package, self._imports[package]) for package in self._imports
        }
        return texts | self._whole

    def add_imports_of(self, tree: ast.Module) -> None:
        imported = dict(imported_names(tree))
        for name in imported.values():
            self._add(name)
        for chain in _chains(tree):
            root, _, rest = chain.partition(".")
            if root in imported:
                self._add(f"{imported[root]}.{rest}", bound_from=imported[root])

    def _add(self, name: str, bound_from: str = "") -> None:
        """Add the module or package that contains a dotted name.

        Args:
            name: For example `official.nlp.modeling.layers.MaskedLM`.
            bound_from: The package that an attribute is accessed on, such as `official.nlp`. The
                rest of the name must be bound in it. Not needed for an import, which finds
                submodules itself.
        """
        if not name.startswith("official.") or has_name(_in_lite(name)):
            return
        module = self._module_of(name)
        if module is None:
            return
        for package in parents(name):
            if bound_from and f"{package}.".startswith(f"{bound_from}."):
                self._add_from_package(package, name[len(package) + 1 :].partition(".")[0])
        if not self._is_package(module):
            self._add_module(module)
        elif module != name:
            self._add_from_package(module, name[len(module) + 1 :].partition(".")[0])
        else:
            self._imports.setdefault(module, {})

    def _add_module(self, module: str) -> None:
        if module in self._whole:
            return
        self._whole[module] = self._text(module)
        self.add_imports_of(ast.parse(self._whole[module]))

    def _add_from_package(self, package: str, name: str) -> None:
        if package in self._whole or not self._is_package(package):
            return
        imports = self._imports.setdefault(package, {})
        if name in imports:
            return
        for source, original in self._ways_to(package, name):
            imports[name] = f"from {source} import {original}"
            imports[name] += f" as {name}" if name != original else ""
            self._add(f"{source}.{original}")
            return
        if module_file(self._folder, f"{package}.{name}"):
            imports[name] = f"from {package} import {name}"
        elif name in top_level_names(self._file(package)):
            # The package itself defines the name.
            self._add_module(package)

    def _ways_to(self, package: str, name: str) -> Iterator[tuple[str, str]]:
        """Yield the module from which a package imports a name, and the name in that module."""
        for node in ast.parse(self._text(package)).body:
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    yield node.module, alias.name
                elif alias.name == "*" and name in top_level_names(self._file(node.module)):
                    yield node.module, name

    def _module_of(self, name: str) -> str | None:
        """Return the longest prefix of a dotted name that is a module."""
        candidates = [name, *reversed(list(parents(name)))]
        return next((one for one in candidates if module_file(self._folder, one)), None)

    def _is_package(self, module: str) -> bool:
        file = module_file(self._folder, module)
        return file is not None and file.name == "__init__.py"

    def _file(self, module: str) -> pathlib.Path:
        return module_file(self._folder, module) or self._folder / "__init__.py"

    def _text(self, module: str) -> str:
        return self._file(module).read_text(encoding="utf-8")


def _package_text(package: str, imports: Mapping[str, str]) -> str:
    lines = sorted(set(imports.values()))
    return "\n".join(
        [f'"""Of `{package}`, what is needed here."""', *[""][: len(lines)], *lines, ""]
    )


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that absolute imports bind, each with the dotted name that it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _chains(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (chain := dotted_name(node)):
            yield chain


def _in_lite(name: str) -> str:
    return name.replace("official", "official_lite", 1)
