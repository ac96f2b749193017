"""Mapping of Model Garden and Keras 2 names to their names after the port."""

import ast
import dataclasses
import functools
import importlib.util
import pathlib
from collections.abc import Iterable, Iterator

from official_lite.porting.keras_changes import KERAS_2_ROOTS, PRIVATE, RENAMED

# The folder of `official_lite`, whose files are read instead of imported.
LITE = pathlib.Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Destinations:
    """A translation of dotted names.

    Attributes:
        alongside: Name of the package that holds the copied Model Garden modules which the project
            needs and `official_lite` lacks; empty if there is no such package.
        brought: Model Garden names of the modules that this package contains or will contain.
    """

    alongside: str = ""
    brought: frozenset[str] = frozenset()

    def translate(self, name: str) -> str | None:
        """Return the new name; None if the name is unchanged or has no replacement."""
        if _is_in(name, "orbit"):
            return f"official_lite.{name}"
        if _is_in(name, "official"):
            return self._translate_garden(name)
        keras_name = _as_keras(name)
        if keras_name is None:
            return None
        keras_name = _public(keras_name)
        old = _longest_prefix(keras_name, RENAMED)
        renamed = RENAMED[old] + keras_name[len(old) :] if old else keras_name
        return renamed if renamed != name else None

    def _translate_garden(self, name: str) -> str | None:
        lite = _without_merged_module(name.replace("official", "official_lite", 1))
        if has_name(lite):
            return lite
        if self.alongside and _longest_prefix(name, self.brought):
            return name.replace("official", self.alongside, 1)
        return None


def has_name(name: str) -> bool:
    """Return whether `official_lite` has a module or a member of a module with a dotted name."""
    if module_file(LITE, name) is not None:
        return True
    parent, _, attribute = name.rpartition(".")
    while parent:
        file = module_file(LITE, parent)
        if file is not None:
            # If a package does not define the name, it may be the name of a missing module.
            return file.name != "__init__.py" or attribute in top_level_names(file)
        parent, _, attribute = parent.rpartition(".")
    return False


def _without_merged_module(name: str) -> str:
    """Return `package.member` for `package.module.member` if `package` is a single module."""
    parent, _, member = name.rpartition(".")
    package, _, module = parent.rpartition(".")
    file = module_file(LITE, package) if package else None
    if file is None or file.name == "__init__.py":
        return name
    names = top_level_names(file)
    # `module` may instead be a class in the single module, and `member` one of its methods.
    is_merged = member in names and (module == member or module not in names)
    return f"{package}.{member}" if is_merged else name


@functools.cache
def package_folder(package: str) -> pathlib.Path | None:
    """Return the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return pathlib.Path(next(iter(spec.submodule_search_locations)))


def module_file(folder: pathlib.Path, module: str) -> pathlib.Path | None:
    """Return the file of a dotted module in the top-level package `folder`; None if missing."""
    path = folder.joinpath(*module.split(".")[1:])
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if path != folder and candidate.is_file():
            return candidate
    return folder / "__init__.py" if path == folder else None


def dotted_name(node: ast.expr) -> str | None:
    """Return `a.b.c` for a chain of attributes, and None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted_name(node.value)
        return f"{base}.{node.attr}" if base else None
    return None


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that absolute imports bind, each with its full dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def parents(name: str) -> Iterator[str]:
    """Yield `a` and `a.b` for `a.b.c`."""
    parts = name.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts)))


@functools.cache
def top_level_names(file: pathlib.Path) -> frozenset[str]:
    """Return the names that a module defines or imports at its top level."""
    names: set[str] = set()
    # A stub lists the names that its module imports lazily.
    files = [path for path in (file, file.with_suffix(".pyi")) if path.is_file()]
    for node in (n for path in files for n in ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(a.asname or a.name.partition(".")[0] for a in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
            names.update(_listed(node))
    return frozenset(names)


def missing_in_keras(name: str) -> str | None:
    """Return the shortest prefix of a dotted name that Keras lacks; None if it has the name.

    The files of the installed Keras are read, because importing it is slow. Only packages and their
    members are checked; members of classes are assumed to exist.
    """
    api = _keras_api()
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
def _keras_api() -> dict[str, frozenset[str]]:
    """Return the names in each public Keras package, keyed by package."""
    root = package_folder("keras")
    if root is None:
        return {}
    api = {}
    for path in root.rglob("__init__.py"):
        parts = path.parent.relative_to(root).parts
        if parts and parts[0] in ("src", "_tf_keras"):
            continue
        api[".".join(("keras", *parts))] = top_level_names(path)
    return api


def _listed(node: ast.Assign | ast.AnnAssign) -> set[str]:
    """Return the names that an assignment to `__all__` lists; empty for any other assignment.

    The module may define some of the names dynamically.
    """
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if not any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
        return set()
    constants = ast.walk(node.value) if node.value else ()
    return {n.value for n in constants if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def _as_keras(name: str) -> str | None:
    old = _longest_prefix(name, KERAS_2_ROOTS)
    if old:
        return KERAS_2_ROOTS[old] + name[len(old) :]
    return name if _is_in(name, "keras") else None


def _public(name: str) -> str:
    """Return the public name for a name in a private module such as `keras.src.losses`."""
    if not name.startswith("keras.src."):
        return name
    _, _, *parts = name.split(".")
    if parts[-1] in PRIVATE:
        return PRIVATE[parts[-1]]
    for package in (".".join(parts[:-1]), parts[0], "", "layers"):
        public = ".".join(filter(None, ("keras", package, parts[-1])))
        if missing_in_keras(public) is None:
            return public
    return name


def _longest_prefix(name: str, known: Iterable[str]) -> str:
    fitting = [old for old in known if _is_in(name, old)]
    return max(fitting, key=len, default="")


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")
