"""A module imports only from its own package and from lower layers, and nothing in a circle."""

import ast
import functools
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
# From the bottom up; the longest prefix that fits a module decides. Entries in one row are siblings
# and know nothing of one another.
LAYERS = [
    ["official_lite.common"],
    [
        f"official_lite.modeling.{name}"
        for name in ("distributed_gradients", "hyperparams", "replica_state")
    ],
    [
        "official_lite.telemetry",
        "official_lite.checkpoint",
        "official_lite.data",
        "official_lite.modeling",
        "official_lite.prediction",
    ],
    ["official_lite.config.phase_configs", "official_lite.keras2"],
    ["official_lite.core.config_definitions"],
    ["official_lite.core.exp_factory"],
    ["official_lite.config", "official_lite.orbit"],
    ["official_lite.core.step_metrics"],
    ["official_lite.execution"],
    ["official_lite.core"],
    ["official_lite.run"],
    ["official_lite.core.actions"],
    ["official_lite.core.train_lib"],
    ["official_lite.run.continuous_finetune_lib"],
    ["official_lite.core.train_utils"],
    ["official_lite.modeling.multitask"],
    ["official_lite.pipeline", "official_lite.utils"],
    ["official_lite.nas"],
    ["official_lite.search"],
    ["official_lite.reports", "official_lite.porting"],
    ["official_lite.tools"],
    ["experiments"],
    ["registry_imports"],
    ["train"],
]
LAYER_OF = {name: level for level, names in enumerate(LAYERS) for name in names}


def _modules() -> dict[str, pathlib.Path]:
    roots = [ROOT / "official_lite", ROOT / "experiments"]
    paths = [p for root in roots for p in root.rglob("*.py")]
    paths += [ROOT / "train.py", ROOT / "registry_imports.py"]
    named = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in paths}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


MODULES = _modules()


def _package_of(module: str) -> str:
    fitting = [n for n in LAYER_OF if module == n or module.startswith(n + ".")]
    return max(fitting, key=len) if fitting else "official_lite"


@functools.cache
def _imports(name: str, *, at_run_time_only: bool = False) -> tuple[str, ...]:
    """The modules of this project that a module imports, inside functions too."""
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
    own, other = _package_of(name), _package_of(imported)
    return other in (own, "official_lite") or LAYER_OF[other] < LAYER_OF[own]


def test_modules_import_only_from_below() -> None:
    imports = [(name, imported) for name in sorted(MODULES) for imported in _imports(name)]
    assert [
        f"{name} imports {other}" for name, other in imports if not _is_below(other, name)
    ] == []


def test_no_module_imports_in_a_circle() -> None:
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


def test_only_train_imports_the_registrations() -> None:
    importers = {name for name in MODULES if "registry_imports" in set(_imports(name))}
    assert importers == {"train"}
