"""Each package says in `__all__` what is public, and it is so."""

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
    """Of a module that has one: what it defines. Of a package: what it takes from its modules."""
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


@pytest.mark.parametrize("name", [n for n in MODULES if n.count(".") == 1])
def test_subject_with_a_front_door_lists_it(name: str) -> None:
    module = importlib.import_module(name)
    imports_something = any(
        getattr(value, "__module__", "").startswith(f"{name}.") for value in vars(module).values()
    )
    assert hasattr(module, "__all__") or not imports_something
