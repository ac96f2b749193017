"""The script behind `.ci/run` distinguishes unstable tests from failing tests."""

import pathlib
import runpy
from typing import Any

import pytest

CHECKS = runpy.run_path(str(pathlib.Path(__file__).parents[1] / ".ci" / "checks.py"))
PASSES = "def test_sound(): pass"
FAILS = "def test_wrong(): assert False"
SECOND_TIME = """
import pathlib

def test_unstable():
    marker = pathlib.Path(__file__).with_name("marker")
    was_there = marker.exists()
    marker.touch()
    assert was_there
"""
SKIPPED = "import pytest\n\ndef test_skipped(): pytest.skip('no such device')"


def _report_of(tmp_path: pathlib.Path, *tests: str) -> Any:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_it.py").write_text("\n\n".join(tests))
    report = CHECKS["Report"]()
    CHECKS["run_tests"](report, "slow tests", f"python -m pytest -q {tmp_path}", tmp_path)
    CHECKS["check_skips"](report)
    return report


@pytest.mark.parametrize(
    ("tests", "num_unstable", "problems"),
    [
        ([PASSES], 0, []),
        ([PASSES, SECOND_TIME], 1, []),
        ([SECOND_TIME, FAILS], 0, ["slow tests: tests failed twice"]),
        (["import no_such_module"], 0, ["slow tests: pytest ended with exit code 2"]),
        ([], 0, ["slow tests: pytest ended with exit code 5"]),
    ],
)
def test_test_that_passes_when_repeated_is_reported_as_unstable_and_other_failures_as_problems(
    tmp_path: pathlib.Path, tests: list[str], num_unstable: int, problems: list[str]
) -> None:
    report = _report_of(tmp_path, *tests)
    assert len(report.unstable) == num_unstable
    assert report.problems == problems


def test_skip_for_an_unlisted_reason_is_reported_as_a_problem(tmp_path: pathlib.Path) -> None:
    (problem,) = _report_of(tmp_path, PASSES, SKIPPED).problems
    assert "test_skipped: no such device" in problem


def test_checks_run_the_test_command_of_the_readme() -> None:
    assert CHECKS["readme_command"]().startswith("python -m pytest -n 2")
