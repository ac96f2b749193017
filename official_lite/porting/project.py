"""Porting of the files of a project.

The code cells of a notebook are ported together, as a module, because they share their imports.
"""

import ast
import concurrent.futures
import dataclasses
import difflib
import functools
import itertools
import json
import multiprocessing
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import libcst as cst

from official_lite.common import errors
from official_lite.porting import (
    base_classes,
    functional_ops,
    idioms,
    manual_todos,
    names,
)
from official_lite.porting.symbol_map import (
    Destinations,
    dotted_name,
    has_name,
    imported_names,
    module_file,
    package_folder,
    parents,
    top_level_names,
)

_SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules"})
# With at least this many files, porting in several processes is faster.
_MANY_FILES = 50
_PathAndText: TypeAlias = tuple[pathlib.Path, bytes]
_Ported: TypeAlias = tuple[bytes, list[manual_todos.Remaining]]
_CONFIGS = (".gin", ".yaml", ".yml")
_SUFFIXES = (".py", ".ipynb", *_CONFIGS)
_DOTTED = re.compile(r"(?<![\w./-])(?:official|orbit|tf_keras|tensorflow\.keras)(?:\.\w+)+")
# The comment that marks the start of each cell in the code of a notebook.
_CELL = "# The cell "
# The text that is inserted before a line that only IPython understands. It makes the line a
# statement rather than a comment, because the line may be the only one of a block.
_FOR_IPYTHON = "pass  # For IPython: "
_NOT_A_FOLDER_NAME = re.compile(r"\W")


@dataclasses.dataclass(frozen=True)
class PortedFile:
    """A file before and after the port.

    Attributes:
        path: Path of the file, which may not exist yet.
        before: The original text; empty if the file is copied from the Model Garden and does not
            exist yet.
        after: The ported text.
    """

    path: pathlib.Path
    before: bytes
    after: bytes

    @property
    def is_new(self) -> bool:
        return not self.path.exists()

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        """Return the unified diff of the file; empty if nothing changed."""
        before, after = (
            text.decode("utf-8", "replace").splitlines(keepends=True)
            for text in (self.before, self.after)
        )
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}"))


@dataclasses.dataclass(frozen=True)
class Port:
    """The result of a port. Files are only written by `write`.

    Attributes:
        files: All ported files, sorted by path.
        remaining: Places that require manual work, with line numbers after the port.
        skipped: Files that can't be read, with the reason.
    """

    files: Sequence[PortedFile]
    remaining: Sequence[manual_todos.Remaining]
    skipped: Mapping[str, str]

    def diff(self) -> str:
        """Return the unified diff of all files."""
        return "".join(file.diff() for file in self.files)

    def write(self) -> None:
        """Write the files that changed."""
        for file in self.files:
            if file.changed:
                file.path.parent.mkdir(parents=True, exist_ok=True)
                file.path.write_bytes(file.after)


def port_project(paths: Sequence[str], *, alongside: str = "") -> Port:
    """Port Python files, notebooks, and gin and YAML files.

    Args:
        paths: Files, and folders whose files are ported.
        alongside: Name of a package next to the first path, or in it if it is a folder, for the
            Model Garden modules that the project imports and `official_lite` lacks. They are copied
            from the installed Model Garden and ported; existing files are not replaced. Empty for
            none.

    Raises:
        ConfigValueError: A path does not exist, or `alongside` is not a valid package name.
    """
    if _NOT_A_FOLDER_NAME.search(alongside) or alongside in ("official", "official_lite"):
        raise errors.ConfigValueError(
            f"`alongside` is {alongside!r}; expected the name of a package such as `model_garden`, "
            "other than `official` and `official_lite`."
        )
    sources = {path: path.read_bytes() for path in _files_to_port(paths)}
    skipped = {str(path): why for path, text in sources.items() if (why := _unreadable(path, text))}
    sources = {path: text for path, text in sources.items() if str(path) not in skipped}
    codes = [code for path, text in sources.items() if (code := _code_of(path, text))]
    first = pathlib.Path(paths[0])
    folder = first if first.is_dir() else first.parent
    package = _imported_as(alongside, folder, codes) if alongside else ""
    brought = gather(codes) if alongside else {}
    new = {folder / _path_of(name, alongside, brought): text for name, text in brought.items()}
    texts = sources | {p: t.encode() for p, t in new.items() if not p.exists()}
    destinations = Destinations(package, frozenset(brought))
    own = frozenset(name for path in sources for name in _names_below_official(path))
    port = functools.partial(_ported, destinations=destinations, own_names=own)
    paths_and_texts = sorted(texts.items())
    files, by_hand = [], []
    for (path, _), (after, found) in zip(paths_and_texts, _map(port, paths_and_texts), strict=True):
        files.append(PortedFile(path, sources.get(path, b""), after))
        by_hand += found
    return Port(files, sorted(by_hand), skipped)


def _map(
    port: Callable[[_PathAndText], _Ported], files: Sequence[_PathAndText]
) -> Iterable[_Ported]:
    if len(files) < _MANY_FILES:
        return map(port, files)
    # Use `spawn`, because forking is unsafe in a process that runs TensorFlow's threads.
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(mp_context=spawn) as pool:
        return list(pool.map(port, files, chunksize=8))


def _ported(file: _PathAndText, destinations: Destinations, own_names: frozenset[str]) -> _Ported:
    """Return the ported text of a file, and the places that require manual work."""
    path, text = file
    if path.suffix in _CONFIGS:
        return _with_new_names(text.decode(), destinations).encode(), []
    if path.suffix != ".ipynb":
        module = _rewritten(cst.parse_module(text), destinations)
        found = manual_todos.find(module.code, own_names)
        return module.bytes, [manual_todos.Remaining(str(path), *one) for one in found]
    notebook = Notebook(text)
    code = _rewritten(cst.parse_module(notebook.code), destinations).code
    places = []
    for line, what in manual_todos.find(code, own_names):
        cell, line_in_cell = notebook.place_of(code, line)
        places.append(manual_todos.Remaining(f"{path}, cell {cell}", line_in_cell, what))
    return notebook.with_code(code), places


def _with_new_names(text: str, destinations: Destinations) -> str:
    """Translate the dotted module names in a gin or YAML file's text."""
    return _DOTTED.sub(lambda match: destinations.translate(match[0]) or match[0], text)


def _rewritten(module: cst.Module, destinations: Destinations) -> cst.Module:
    module = names.rename(module, destinations)
    return functional_ops.rewrite(base_classes.rewrite(idioms.rewrite(module)))


def _files_to_port(paths: Sequence[str]) -> Iterator[pathlib.Path]:
    seen: set[pathlib.Path] = set()
    for path in map(pathlib.Path, paths):
        if not path.exists():
            raise errors.ConfigValueError(f"{path} does not exist. Pass existing files or folders.")
        found = sorted(_below(path)) if path.is_dir() else [path]
        yield from (file for file in found if file not in seen)
        seen.update(found)


def _below(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    for path in folder.iterdir():
        if path.is_file() and path.suffix in _SUFFIXES:
            yield path
        elif path.is_dir() and not _is_foreign(path):
            yield from _below(path)


def _is_foreign(folder: pathlib.Path) -> bool:
    """Return whether a folder is not part of the project, such as a virtual environment."""
    hidden = folder.name.startswith(".") or folder.name in _SKIPPED_FOLDERS
    return hidden or (folder / "pyvenv.cfg").exists() or folder.is_symlink()


def _unreadable(path: pathlib.Path, text: bytes) -> str:
    """Return why a file can't be ported; empty if it can."""
    try:
        if path.suffix in _CONFIGS:
            text.decode()
            return ""
        source = Notebook(text).code if path.suffix == ".ipynb" else text
        ast.parse(source)
        cst.parse_module(source)
    except (SyntaxError, ValueError, cst.ParserSyntaxError) as error:
        return str(error).partition("\n")[0]
    return ""


def _code_of(path: pathlib.Path, text: bytes) -> str:
    """Return the Python code of a file; empty if it contains none."""
    if path.suffix == ".ipynb":
        return Notebook(text).code
    return "" if path.suffix in _CONFIGS else cst.parse_module(text).code


def _imported_as(name: str, folder: pathlib.Path, codes: Iterable[str]) -> str:
    """Return the dotted name under which a project imports the package `name` in `folder`.

    The name starts with the folder's name if the folder is a package, or if the project imports
    the folder's modules that way. Otherwise it is just `name`, because Python finds modules in the
    folder.
    """
    folder = folder.resolve()
    is_package = ((path / "__init__.py").is_file() for path in (folder, *folder.parents))
    depth = sum(itertools.takewhile(bool, is_package))
    imported = [other for code in codes for _, other in imported_names(ast.parse(code))]
    for length in range(depth + 1, len(folder.parts)):
        prefix = ".".join(folder.parts[-length:]) + "."
        members = {other.split(".")[length] for other in imported if other.startswith(prefix)}
        if any((folder / one).is_dir() or (folder / f"{one}.py").is_file() for one in members):
            depth = length
    return ".".join((*folder.parts[len(folder.parts) - depth :], name))


def _path_of(module: str, alongside: str, brought: Iterable[str]) -> pathlib.Path:
    parts = [alongside, *module.split(".")[1:]]
    is_package = any(other.startswith(f"{module}.") for other in brought)
    path = pathlib.Path(*parts)
    return path / "__init__.py" if is_package else path.with_suffix(".py")


def _names_below_official(path: pathlib.Path) -> Iterator[str]:
    """Yield the dotted names that a file below the project's own folder `official` defines.

    These are the file's module and, for an `__init__.py`, the names that it defines or imports.
    """
    folders = path.resolve().parent.parts
    if "official" not in folders or path.suffix != ".py":
        return
    start = len(folders) - 1 - folders[::-1].index("official")
    package = ".".join(folders[start:])
    members = top_level_names(path) if path.name == "__init__.py" else ()
    yield from (f"{package}.{name}" for name in (path.stem, *members))


class Notebook:
    """The code of a Jupyter notebook as a module.

    Cells that begin with `%%` are left out. Lines that begin with `%` or `!` become statements
    without effect.

    Args:
        text: The content of the file.

    Raises:
        ValueError: The file is not a notebook.
    """

    def __init__(self, text: bytes) -> None:
        try:
            self._content: dict[str, Any] = json.loads(text)
            cells = list(self._content["cells"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"not a notebook: {error}") from error
        self._text = text.decode()
        self._cells = {
            index: cell
            for index, cell in enumerate(cells)
            if cell["cell_type"] == "code" and not "".join(cell["source"]).startswith("%%")
        }

    @property
    def code(self) -> str:
        """The code of all cells as a module."""
        lines = []
        for index, cell in self._cells.items():
            lines.append(f"{_CELL}{index}")
            lines += map(_without_magic, "".join(cell["source"]).split("\n"))
        return "\n".join(lines) + "\n"

    def with_code(self, code: str) -> bytes:
        """Return the notebook with the ported `code` in its cells."""
        sources: dict[int, list[str]] = {}
        # Lines that were inserted before the first cell become part of that cell.
        before: list[str] = []
        for line in code.removesuffix("\n").split("\n"):
            if line.startswith(_CELL):
                sources[int(line.removeprefix(_CELL))] = current = before
                before = []
            elif sources:
                current.append(_with_magic(line))
            else:
                before.append(line)
        for index, lines in sources.items():
            cell, text = self._cells[index], "\n".join(lines)
            is_list = isinstance(cell["source"], list)
            cell["source"] = text.splitlines(keepends=True) if is_list else text
        return self._dumped().encode()

    def place_of(self, code: str, line: int) -> tuple[int, int]:
        """Return the cell and the line in it, both counted from 1, for a line of `code`."""
        lines = code.split("\n")[:line]
        start = max((i for i, text in enumerate(lines, 1) if text.startswith(_CELL)), default=0)
        cell = int(lines[start - 1].removeprefix(_CELL)) if start else 0
        return cell + 1, line - start

    def _dumped(self) -> str:
        end = "\n" if self._text.endswith("\n") else ""
        for is_ascii in (False, True):
            for indent in (1, 2, 4, None):
                original = json.dumps(json.loads(self._text), indent=indent, ensure_ascii=is_ascii)
                if original + end == self._text:
                    return json.dumps(self._content, indent=indent, ensure_ascii=is_ascii) + end
        return json.dumps(self._content, indent=1, ensure_ascii=False) + end


def _without_magic(line: str) -> str:
    stripped = line.lstrip()
    if not stripped.startswith(("%", "!")):
        return line
    return line[: len(line) - len(stripped)] + _FOR_IPYTHON + stripped


def _with_magic(line: str) -> str:
    return line.replace(_FOR_IPYTHON, "", 1) if line.lstrip().startswith(_FOR_IPYTHON) else line


def gather(sources: Iterable[str]) -> Mapping[str, str]:
    """Return the source of each Model Garden module that the sources need, by module name.

    The returned sources are unchanged, except for the `__init__` files of packages.

    Raises:
        ConfigValueError: The Model Garden is not installed.
    """
    folder = package_folder("official")
    if folder is None:
        raise errors.ConfigValueError(
            "The port copies modules from the Model Garden, which is not installed. Run "
            "`pip install --no-deps tf-models-official`."
        )
    gatherer = _Gatherer(folder)
    for source in sources:
        gatherer.add_imports_of(ast.parse(source))
    return gatherer.texts()


class _Gatherer:
    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._whole: dict[str, str] = {}
        # Maps each package to its import statements, by the name that each statement binds.
        self._imports: dict[str, dict[str, str]] = {}

    def texts(self) -> Mapping[str, str]:
        packages = {
            parent for module in [*self._whole, *self._imports] for parent in parents(module)
        }
        texts = {
            package: _package_text(package, self._imports.get(package, {}))
            for package in packages.union(self._imports)
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
            name: The dotted name, such as `official.nlp.modeling.layers.MaskedLM`.
            bound_from: The package that an attribute is accessed on, such as `official.nlp`. The
                rest of the name must be bound in it. Empty for a name in an import statement,
                which finds submodules by itself.
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
        [f'"""The names of `{package}` that this project uses."""', *[""][: len(lines)], *lines, ""]
    )


def _chains(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (chain := dotted_name(node)):
            yield chain


def _in_lite(name: str) -> str:
    return name.replace("official", "official_lite", 1)
