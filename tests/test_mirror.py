"""The tests have the shape of the source tree: a file for each module, or several."""

import pathlib

ROOT = pathlib.Path(__file__).parent.parent
SOURCE = ROOT / "official_lite"
TESTS = ROOT / "tests"
# Tests of the whole, which have no single module to stand beside.
OF_THE_WHOLE = {"docs", "end_to_end", "experiments", "judges", "model_garden", "ports"}


def _expected_test(module: pathlib.Path) -> pathlib.Path:
    relative = module.relative_to(SOURCE)
    return TESTS / relative.parent / f"test_{relative.name}"


def test_every_module_has_its_test_file() -> None:
    modules = [p for p in SOURCE.rglob("*.py") if p.name != "__init__.py"]
    missing = [str(_expected_test(p).relative_to(ROOT)) for p in modules]
    missing = [path for path in missing if not (ROOT / path).exists()]
    assert not missing


def test_every_test_file_stands_beside_its_package() -> None:
    tests = [p for p in TESTS.rglob("test_*.py") if p.parent != TESTS]
    tests = [p for p in tests if p.relative_to(TESTS).parts[0] not in OF_THE_WHOLE]
    folders = {path.parent.relative_to(TESTS) for path in tests}
    assert [str(f) for f in folders if not (SOURCE / f / "__init__.py").exists()] == []
