"""Tests that `Nest` is the package's only alias of `Any`."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parent.parent.parent


def _aliases_of_any(path: pathlib.Path) -> list[str]:
    nodes = ast.parse(path.read_text()).body
    assigned = [n for n in nodes if isinstance(n, ast.Assign | ast.AnnAssign)]
    return [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for node in assigned
        if isinstance(node.value, ast.Name) and node.value.id == "Any"
    ]


def test_nest_is_the_only_type_alias_of_any_in_the_package() -> None:
    paths = sorted((ROOT / "official_lite").rglob("*.py"))
    found = [alias for path in paths for alias in _aliases_of_any(path)]
    assert found == ["official_lite/common/nests.py: Nest: TypeAlias = Any"]
