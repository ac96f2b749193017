import pathlib
import sys

import pytest

from official_lite.common import plugins


@pytest.fixture
def install(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a package of one module, and what pip would note of it, where Python looks."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, source: str, group: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        notes = tmp_path / f"{name}-1.5.dist-info"
        notes.mkdir()
        (notes / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (notes / "entry_points.txt").write_text(f"[{group}]\nmine = {name}\n")

    yield install
    for module in [name for name in sys.modules if name.startswith("pluggable_")]:
        del sys.modules[module]


def test_modules_of_the_group_are_imported_once(install) -> None:
    install("pluggable_good", "print('imported')", "pluggable.one")
    install("pluggable_other", "raise AssertionError", "pluggable.another")
    assert plugins.import_group("pluggable.one") == ()
    assert "pluggable_good" in sys.modules
    assert "pluggable_other" not in sys.modules
    del sys.modules["pluggable_good"]
    plugins.import_group("pluggable.one")
    assert "pluggable_good" not in sys.modules


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys; sys.exit('no license')", "SystemExit: no license"),
        ("1 +", "SyntaxError: "),
    ],
)
def test_broken_module_is_named_and_keeps_no_other_from_being_imported(
    install, source: str, reason: str
) -> None:
    group = f"pluggable.{reason[:6]}"
    install("pluggable_broken", source, group)
    install("pluggable_good", "", group)
    (left_out,) = plugins.import_group(group)
    assert left_out.startswith(
        "The entry point `mine = pluggable_broken` of pluggable_broken 1.5 can't be imported: "
    )
    assert reason in left_out
    assert "pluggable_good" in sys.modules
