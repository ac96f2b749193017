"""The Model Garden's own tests pass with our packages, except for those listed with a reason.

The wheel's dependencies conflict with a current TensorFlow, but reading the wheel requires none of
them: `pip install --no-deps tf-models-official==2.20.0`.
"""

import importlib.metadata
import pathlib
import xml.etree.ElementTree as ElementTree

import pytest
import yaml

from tests import commands

HERE = pathlib.Path(__file__).parent
EXPECTED: dict[str, dict] = yaml.safe_load((HERE / "expected.yaml").read_text())
VERSION = "2.20.0"


def _installed_version() -> str | None:
    try:
        return importlib.metadata.version("tf-models-official")
    except importlib.metadata.PackageNotFoundError:
        return None


needs_wheel = pytest.mark.skipif(
    _installed_version() != VERSION,
    reason=f"needs `pip install --no-deps tf-models-official=={VERSION}`",
)


def _run(path: str, report: pathlib.Path) -> dict[str, str]:
    """Return the outcome of each test in a file: passed, failed or skipped."""
    process = commands.run([HERE / "run_wheel_test.py", path, f"--xml_output_file={report}"])
    assert report.exists(), process.stderr[-3000:]
    return {
        f"{case.get('classname').rpartition('.')[-1]}.{case.get('name')}": _outcome(case)
        for case in ElementTree.parse(report).getroot().iter("testcase")
        if case.get("name") != "test_session"
    }


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    # absl reports a skipped test with the status `notrun`.
    return "skipped" if case.get("status") == "notrun" else "passed"


@needs_wheel
@pytest.mark.slow
@pytest.mark.parametrize("path", EXPECTED)
def test_model_garden_test_file_passes_except_for_its_excluded_tests(
    path: str, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    if dtype := EXPECTED[path].get("computes_in"):
        request.getfixturevalue(f"{dtype}_kernels")
    outcomes = _run(path, tmp_path / "report.xml")
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert failed == set(EXPECTED[path].get("cannot_hold", {}))
    assert list(outcomes.values()).count("passed") == EXPECTED[path]["passes"]


def test_at_least_260_tests_of_the_model_garden_wheel_pass() -> None:
    assert sum(entry["passes"] for entry in EXPECTED.values()) >= 260


def test_every_excluded_test_of_the_model_garden_wheel_has_a_reason() -> None:
    for entry in EXPECTED.values():
        for reason in entry.get("cannot_hold", {}).values():
            assert len(reason.split()) > 3
