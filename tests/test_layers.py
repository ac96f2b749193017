"""Modules import only from their own package and from lower layers, without cycles."""

import ast
import functools
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
# The config schemas. They are in `core` as in the Model Garden, but parsing needs them.
SCHEMAS = (
    "official_lite.config.phase_configs",
    "official_lite.core.config_definitions",
    "official_lite.core.exp_factory",
)
# The layers from the bottom up. A module belongs to the entry that is its longest prefix. The
# entries of a layer do not import one another.
LAYERS: list[list[str | tuple[str, ...]]] = [
    ["official_lite.common"],
    ["official_lite.modeling.hyperparams"],
    ["official_lite.modeling"],
    [f"official_lite.{name}" for name in ("telemetry", "checkpoint", "data", "prediction")],
    [SCHEMAS, "official_lite.keras2"],
    ["official_lite.config", "official_lite.orbit"],
    # The executors use this module to count examples as the trainer does.
    ["official_lite.core.step_metrics"],
    ["official_lite.execution"],
    ["official_lite.run"],
    ["official_lite.core"],
    ["official_lite.modeling.multitask", "official_lite.nas", "official_lite.utils"],
    ["official_lite.pipeline"],
    ["official_lite.search"],
    ["official_lite.reports", "official_lite.porting"],
    ["official_lite.tools", "experiments"],
    ["registry_imports"],
    ["train"],
]
# The top-level package exports names of higher layers, which it imports on first use.
DOOR = "official_lite"
_LEVELS = [(entry, level) for level, row in enumerate(LAYERS) for entry in row]
# The entry and the level of each prefix.
ENTRY_OF = {
    name: (entry, level)
    for entry, level in _LEVELS
    for name in (entry if isinstance(entry, tuple) else (entry,))
}


def _modules() -> dict[str, pathlib.Path]:
    roots = [ROOT / "official_lite", ROOT / "experiments"]
    paths = [p for root in roots for p in root.rglob("*.py")]
    paths += [ROOT / "train.py", ROOT / "registry_imports.py"]
    named = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in paths}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


MODULES = _modules()


def _entry_of(module: str) -> tuple[str | tuple[str, ...], int]:
    fitting = [n for n in ENTRY_OF if module == n or module.startswith(n + ".")]
    return ENTRY_OF[max(fitting, key=len)] if fitting else ("official_lite", -1)


@functools.cache
def _imports(name: str, *, at_run_time_only: bool = False) -> tuple[str, ...]:
    """Return the modules of this project that a module imports, including inside functions."""
    return tuple(_find_imports(name, at_run_time_only))


def _find_imports(name: str, at_run_time_only: bool) -> Iterator[str]:
    tree = ast.parse(MODULES[name].read_text())
    skipped = {id(n) for block in _type_checking_blocks(tree) for n in ast.walk(block)}
    nodes = list(ast.walk(tree))
    stub = MODULES[name].with_suffix(".pyi")
    if stub.exists() and not at_run_time_only:
        nodes += ast.walk(ast.parse(stub.read_text()))
    for node in nodes:
        if at_run_time_only and id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                target = full if full in MODULES else node.module
                if target in MODULES:
                    yield target


def _type_checking_blocks(tree: ast.Module) -> list[ast.If]:
    blocks = [n for n in tree.body if isinstance(n, ast.If)]
    return [n for n in blocks if isinstance(n.test, ast.Name) and n.test.id == "TYPE_CHECKING"]


def _is_below(imported: str, name: str) -> bool:
    (entry, level), (other, other_level) = _entry_of(name), _entry_of(imported)
    return name == DOOR or other == entry or other_level < level


def test_modules_import_only_from_lower_layers() -> None:
    imports = [(name, imported) for name in sorted(MODULES) for imported in _imports(name)]
    assert [
        f"{name} imports {other}" for name, other in imports if not _is_below(other, name)
    ] == []


def test_module_imports_have_no_cycles() -> None:
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in finished:
            return
        for imported in _imports(name, at_run_time_only=True):
            if imported != name:
                visit(imported, [*path, name])
        finished.add(name)

    for name in MODULES:
        visit(name, [])


def test_only_train_py_imports_the_registry_imports_module() -> None:
    importers = {name for name in MODULES if "registry_imports" in set(_imports(name))}
    assert importers == {"train"}
