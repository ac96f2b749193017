"""Run the checks and the tests in the current environment, and report what was slow or unstable.

A failed test is repeated once, alone. A test that passes the second time is reported as unstable;
all others fail the run.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

import yaml

ROOT = pathlib.Path(__file__).parents[1]
PYTEST = "python -m pytest -n 2 --dist worksteal"
NUM_SLOWEST = 20


class Report:
    """Collects the duration of each part, the tests that were slow, and what went wrong."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.unstable: list[str] = []
        self.skips: list[str] = []
        self.problems: list[str] = []

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.parts[name] = time.monotonic() - began

    def print(self) -> None:
        print(f"The {NUM_SLOWEST} slowest tests:")
        slowest = sorted(self.seconds.items(), key=lambda item: -item[1])[:NUM_SLOWEST]
        for test, seconds in slowest:
            print(f"{seconds:7.1f} s  {test}")
        print("The parts:")
        for part, seconds in self.parts.items():
            print(f"{seconds:7.1f} s  {part}")
        for test in self.unstable:
            print(f"unstable: {test}")
        for problem in self.problems:
            print(f"FAILED: {problem}")


def run_tests(report: Report, name: str, command: str, folder: pathlib.Path) -> None:
    """Run a pytest command; repeat the tests that failed, one after the other."""
    first, second = folder / f"{name}.xml", folder / f"{name}-again.xml"
    cache = folder / f"{name}-cache"
    with report.part(name):
        returncode = _pytest(command, first, cache)
    _read(report, first)
    if returncode == 0:
        return
    failed = cache / "v" / "cache" / "lastfailed"
    # With any other code pytest itself failed, or no test was found.
    if returncode != 1 or not failed.exists():
        report.problems.append(f"{name}: pytest ended with exit code {returncode}")
        return
    tests = sorted(json.loads(failed.read_text()))
    print(f"Repeating {len(tests)} tests:", *tests, sep="\n", flush=True)
    with report.part(f"{name}: repeated tests"):
        # Without a marker expression: which variants are slow depends on what is collected.
        again = _pytest(
            f"{command} -n 0 -m '' --last-failed --last-failed-no-failures=none", second, cache
        )
    if again == 0:
        report.unstable += tests
    else:
        report.problems.append(f"{name}: tests failed twice")


def _pytest(command: str, xml: pathlib.Path, cache: pathlib.Path) -> int:
    added = shlex.join([f"--junitxml={xml}", "-o", f"cache_dir={cache}"])
    options = f"{os.environ.get('PYTEST_ADDOPTS', '')} {added}"
    words = [sys.executable, *shlex.split(command)[1:]]
    print("$", command, flush=True)
    return subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTEST_ADDOPTS": options}).returncode


def _read(report: Report, xml: pathlib.Path) -> None:
    if not xml.exists():
        return
    for case in ElementTree.parse(xml).getroot().iter("testcase"):
        test = f"{case.get('classname')}::{case.get('name')}"
        report.seconds[test] = float(case.get("time", 0))
        skipped = case.find("skipped")
        if skipped is not None and skipped.get("type") == "pytest.skip":
            report.skips.append(f"{test}: {skipped.get('message')}")


def check_skips(report: Report) -> None:
    """Compare the skipped tests with the list of skips that have a reason."""
    allowed = yaml.safe_load((ROOT / ".ci" / "allowed_skips.yaml").read_text()) or []
    for skip in sorted(report.skips):
        if not any(re.search(one["test"], skip) for one in allowed):
            report.problems.append(f"skipped, and not in .ci/allowed_skips.yaml: {skip}")


def readme_command() -> str:
    """Return the test command that the README shows."""
    (found,) = re.findall(r"\.venv/bin/(python -m pytest .*)", (ROOT / "README.md").read_text())
    return str(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=["run", "nightly"])
    suite = parser.parse_args().suite
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if suite == "nightly":
            run_tests(report, "slow tests", f"{PYTEST} -m 'slow and not promise'", folder)
        else:
            for command in ("ruff check .", "ruff format --check ."):
                with report.part(command):
                    if subprocess.run(command.split(), cwd=ROOT).returncode:
                        report.problems.append(command)
            # Beside the tests. It runs on one core, and knows from the cache what has not changed.
            log = folder / "mypy.log"
            with log.open("w") as file:
                mypy = subprocess.Popen(["mypy"], cwd=ROOT, stdout=file, stderr=file)
            run_tests(report, "tests", readme_command(), folder)
            run_tests(report, "promises", f"{PYTEST} -m promise", folder)
            run_tests(report, "timing", "python -m pytest -m timing", folder)
            with report.part("mypy, after the tests"):
                if mypy.wait():
                    report.problems.append(f"mypy:\n{log.read_text()}")
                print(log.read_text())
        check_skips(report)
    report.print()
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
