"""A measurement of how much code a reader has to keep in mind.

The static part reads the source: files and lines of each package, modules that only one neighbor
imports, import circles, `getattr` on defaults, arguments typed `Any`, the longest `__init__`. The
dynamic part counts the files of the package whose functions run for a first step, a `--set` value,
a checkpoint, and a short run.

    python -m benchmarks.structure
"""

import argparse
import ast
import collections
import json
import os
import pathlib
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "official_lite"

# Modules with a single importer and fewer lines than this are reported as small.
SMALL_MODULE_LINES = 130


def measure_static() -> dict[str, Any]:
    """Return the measurements that need only the source."""
    trees = {path: _parse(path) for path in sorted(PACKAGE.rglob("*.py"))}
    imports = _imports_by_module(trees)
    lines = {path: len(path.read_text().splitlines()) for path in trees}
    rooms: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for path, count in lines.items():
        room = rooms[path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "."]
        room[0] += 1
        room[1] += count
    single = _single_importers(imports, lines)
    num_any, num_arguments = _count_any(trees)
    functions = [node for tree in trees.values() for node in ast.walk(tree)]
    num_getattr = sum(_is_getattr_with_default(node) for node in functions)
    inits = {p: n for p, n in lines.items() if p.name == "__init__.py"}
    longest = max(inits, key=lambda path: inits[path])
    total = sum(lines.values())
    return {
        "files and lines by room": {name: tuple(room) for name, room in rooms.items()},
        "files": len(lines),
        "lines": total,
        "single-importer modules": len(single),
        "of these small": sum(count < SMALL_MODULE_LINES for count in single.values()),
        "lines of single-importer modules": sum(single.values()),
        "getattr with default": num_getattr,
        "getattr with default per 1,000 lines": round(1000 * num_getattr / total, 1),
        "share of arguments typed Any": round(num_any / num_arguments, 3),
        "import circles, TYPE_CHECKING counted": _circles(imports),
        "longest __init__": f"{longest.relative_to(ROOT)} ({inits[longest]} lines)",
    }


def measure_trainer() -> dict[str, Any]:
    """Return how many classes and names make up the trainer."""
    from official_lite.core import base_trainer

    cls = base_trainer.Trainer
    own = [base for base in cls.__mro__ if base.__module__.startswith("official_lite.")]
    names = {name for base in own for name in vars(base) if not name.startswith("_")}
    return {
        "own classes in the MRO of Trainer": len(own),
        "public names of Trainer": len(names),
    }


def measure_touched() -> dict[str, Any]:
    """Return how many files of the package run for a step, a `--set` value, a save and a run."""
    import tensorflow as tf

    from experiments.vision.digits import configs, task
    from official_lite import orbit
    from official_lite.checkpoint import async_checkpoint_manager
    from official_lite.config import parsing
    from official_lite.core import base_trainer, train_lib

    params = configs.digits_mlp()
    params.override({"runtime": {"execution": "graph"}})
    digits = task.DigitsTask(params.task)
    optimizer = digits.create_optimizer(params.trainer.optimizer_config)
    trainer = base_trainer.Trainer(params, digits, digits.build_model(), optimizer)
    short = {"train_steps": 40, "steps_per_loop": 20, "validation_interval": 20}
    params.override({"trainer": {**short, "checkpoint_interval": 20}})
    with tempfile.TemporaryDirectory() as directory:
        manager = async_checkpoint_manager.AsyncCheckpointManager(
            trainer.checkpoint, directory, max_to_keep=1, step_counter=trainer.global_step
        )
        controller = orbit.Controller(
            global_step=trainer.global_step,
            trainer=trainer,
            steps_per_loop=1,
            checkpoint_manager=manager,
        )
        flags = parsing.ParseConfigOptions(
            experiment="vision/digits_mlp",
            config_file=[],
            set=["trainer.optimizer_config.optimizer.adamw.weight_decay_rate=0.1"],
        )
        return {
            "a first step": _touched(lambda: trainer.run_steps(tf.constant(1))),
            "a --set value": _touched(lambda: parsing.parse_configuration(flags)),
            "a checkpoint": _touched(controller.save_checkpoint),
            "a run of 40 steps": _touched(
                lambda: train_lib.run_experiment(
                    tf.distribute.get_strategy(),
                    digits,
                    "train_and_eval",
                    params,
                    os.path.join(directory, "run"),
                )
            ),
        }


def _parse(path: pathlib.Path) -> ast.Module:
    """Parse a module together with the imports that its stub lists."""
    stub = path.with_suffix(".pyi")
    return ast.parse(path.read_text() + (stub.read_text() if stub.exists() else ""))


def _imports_by_module(trees: dict[pathlib.Path, ast.Module]) -> dict[str, set[str]]:
    """Return the modules that each module imports, including imports in functions or for types."""
    modules = {_module_name(path): tree for path, tree in trees.items()}

    def targets(tree: ast.Module) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in modules)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    if full in modules or node.module in modules:
                        yield full if full in modules else node.module

    return {name: set(targets(tree)) - {name} for name, tree in modules.items()}


def _module_name(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _single_importers(
    imports: dict[str, set[str]], lines: dict[pathlib.Path, int]
) -> dict[str, int]:
    """Return the line counts of modules with a single importer, which is in the same package.

    Imports in an `__init__` are ignored.
    """
    importers: dict[str, list[str]] = collections.defaultdict(list)
    for name, imported in imports.items():
        for target in imported:
            importers[target].append(name)
    packages = {_module_name(path) for path in lines if path.name == "__init__.py"}
    found = {}
    for path, count in lines.items():
        name = _module_name(path)
        # An `__init__` only re-exports names, so its imports are ignored.
        users = [user for user in importers[name] if user not in packages]
        if path.name == "__init__.py" or len(users) != 1:
            continue
        if users[0].rpartition(".")[0] == name.rpartition(".")[0]:
            found[name] = count
    return found


def _circles(imports: dict[str, set[str]]) -> int:
    """Return the number of import cycles: strongly connected groups of more than one module."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(name: str, graph: dict[str, set[str]], found: list[str]) -> None:
        seen.add(name)
        for target in graph.get(name, ()):
            if target not in seen:
                visit(target, graph, found)
        found.append(name)

    for name in imports:
        if name not in seen:
            visit(name, imports, order)
    reverse: dict[str, set[str]] = collections.defaultdict(set)
    for name, targets in imports.items():
        for target in targets:
            reverse[target].add(name)
    seen.clear()
    circles = 0
    for name in reversed(order):
        if name not in seen:
            group: list[str] = []
            visit(name, reverse, group)
            circles += len(group) > 1
    return circles


def _count_any(trees: dict[pathlib.Path, ast.Module]) -> tuple[int, int]:
    counts = [0, 0]
    for tree in trees.values():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            for argument in arguments:
                if argument.arg in ("self", "cls"):
                    continue
                counts[1] += 1
                counts[0] += (
                    isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Any"
                )
    return counts[0], counts[1]


def _is_getattr_with_default(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and len(node.args) == 3
    )


def _touched(act: Callable[[], Any]) -> dict[str, int]:
    """Return how many files and functions of the package run while `act` runs."""
    functions: set[tuple[str, str]] = set()
    prefix = str(PACKAGE)

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            functions.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {"files": len({file for file, _ in functions}), "functions": len(functions)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--static", action="store_true", help="skip measurements that run code")
    measured = measure_static()
    if not parser.parse_args().static:
        measured |= measure_trainer() | measure_touched()
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
