"""Modules list in `__all__` what is public, packages import it as what it is called."""

import ast
import importlib
import pathlib
import types

import pytest

ROOT = pathlib.Path(__file__).parent.parent
MODULES = sorted(
    ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for p in (ROOT / "official_lite").rglob("*.py")
)


@pytest.mark.parametrize("name", MODULES)
def test_what_is_listed_exists(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for public in getattr(module, "__all__", []):
        if f"{name}.{public}" in MODULES:
            # A package need not have imported its modules.
            importlib.import_module(f"{name}.{public}")
        assert getattr(module, public) is not None


@pytest.mark.parametrize("name", MODULES)
def test_list_is_complete(name: str) -> None:
    module = importlib.import_module(name)
    if not hasattr(module, "__all__"):
        return
    public = {
        attribute
        for attribute, value in vars(module).items()
        if isinstance(value, type | types.FunctionType)
        and value.__module__.startswith(name)
        and not attribute.startswith("_")
    }
    assert public <= set(module.__all__)


PACKAGES = [n for n in MODULES if (ROOT / n.replace(".", "/") / "__init__.py").exists()]


@pytest.mark.parametrize("name", [*PACKAGES, "official_lite.core.train_utils"])
def test_what_is_imported_from_below_is_reexported_once(name: str) -> None:
    """By `from module import name as name`, which type checkers and readers understand."""
    module = importlib.import_module(name)
    assert module.__file__ is not None
    path = pathlib.Path(module.__file__)
    # Names that are imported on first use are listed in a stub.
    stub = path.with_suffix(".pyi")
    nodes = [n for p in (path, stub) if p.exists() for n in ast.walk(ast.parse(p.read_text()))]
    imports = [n for n in nodes if isinstance(n, ast.ImportFrom)]
    aliases = [a for n in imports if (n.module or "").startswith(name) for a in n.names]
    aliases += [a for n in imports for a in n.names if a.asname]
    assert all(alias.asname == alias.name for alias in aliases)
    for alias in aliases:
        assert getattr(module, alias.name) is not None
    constants = [n.value for n in nodes if isinstance(n, ast.Constant)]
    assert not {alias.name for alias in aliases} & {c for c in constants if isinstance(c, str)}


def test_init_of_a_package_fits_on_a_screen() -> None:
    inits = (ROOT / "official_lite").rglob("__init__.py")
    assert [str(p) for p in inits if len(p.read_text().splitlines()) > 40] == []
