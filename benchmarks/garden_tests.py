"""Port the whole Model Garden and run its own tests in the port, against recorded counts.

Run it nightly, or before a release::

    pip install --no-deps tf-models-official==2.20.0
    python -m benchmarks.garden_tests WORK_DIR [PREFIX ...] [--seconds=600] [--record]

The command copies the installed Model Garden to `WORK_DIR/official`, ports the copy, and runs each
test file whose path begins with a prefix, such as `official/modeling`, in a process of its own. An
existing copy is used again. `garden_tests.yaml` records, for each file, how many tests pass, and
the tests that do not pass with the reason. The exit code is 1 if a file loses a test: fewer tests
pass, or a test fails that has no reason. A file that is not recorded is reported only.

`--record` adds the counts of this run to `garden_tests.yaml`. New failures get the last line of
their error as the reason, to be replaced by hand.
"""

import argparse
import collections
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

RECORDS = pathlib.Path(__file__).with_suffix(".yaml")
REPOSITORY = pathlib.Path(__file__).parents[1]
DISTRIBUTION = "tf-models-official"
_TOO_LONG = "The file takes more than"


class Outcome(NamedTuple):
    """The result of a test file: how many tests pass, and the error of each that does not."""

    passes: int
    errors: dict[str, str]


def port(work: pathlib.Path) -> None:
    """Copy the installed Model Garden to the work directory and port the copy."""
    if (work / "official").exists():
        return
    located = importlib.metadata.distribution(DISTRIBUTION).locate_file("official")
    skipped = shutil.ignore_patterns("__pycache__")
    unfinished = work / "unfinished" / "official"
    shutil.rmtree(unfinished.parent, ignore_errors=True)
    shutil.copytree(str(located), unfinished, ignore=skipped)
    command = [sys.executable, "-m", "official_lite.tools", "port", str(unfinished), "--write"]
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    unfinished.rename(work / "official")


def run(work: pathlib.Path, path: str, seconds: float) -> Outcome:
    """Run a test file of the port."""
    report = work / "report.xml"
    report.unlink(missing_ok=True)
    paths = os.pathsep.join(map(str, (work, REPOSITORY)))
    command = [sys.executable, str(work / path), f"--xml_output_file={report}"]
    try:
        process = subprocess.run(
            command,
            cwd=work,
            env={**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"},
            timeout=seconds,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(0, {"*": f"{_TOO_LONG} {seconds:g} seconds."})
    if not report.exists():
        return Outcome(0, {"*": _last_line(process.stderr)})
    return read(report)


def read(report: pathlib.Path) -> Outcome:
    """Read the report of a test file, without the tests that were skipped."""
    passes, errors = 0, {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problem = case.find("error") if case.find("failure") is None else case.find("failure")
        if problem is not None:
            name = f"{(case.get('classname') or '').rpartition('.')[2]}.{case.get('name')}"
            errors[name] = _last_line(problem.get("message") or problem.text or "")
        elif case.get("name") != "test_session" and case.get("status") != "notrun":
            passes += 1
    return Outcome(passes, errors)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"


def losses(found: Outcome, recorded: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if fewer tests pass than recorded, and for each failure without a reason."""
    if found.passes < recorded["passes"]:
        yield f"{found.passes} tests pass; {recorded['passes']} are recorded as passing."
    for name in sorted(found.errors.keys() - recorded.get("excluded", {}).keys()):
        yield f"{name}: {found.errors[name]}"


def record(found: Mapping[str, Outcome], records: dict[str, Any]) -> None:
    """Write the counts, and keep the reasons that are already recorded."""
    for path, outcome in found.items():
        reasons = records.get(path, {}).get("excluded", {})
        excluded = {name: reasons.get(name, error) for name, error in outcome.errors.items()}
        entry: dict[str, Any] = {"passes": outcome.passes}
        records[path] = entry | ({"excluded": excluded} if excluded else {})
    comment = "".join(line for line in RECORDS.open() if line.startswith("#"))
    RECORDS.write_text(comment + yaml.safe_dump(records, width=100, sort_keys=True))


def main() -> int:
    """Port, run and compare; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("work", type=pathlib.Path, metavar="WORK_DIR")
    parser.add_argument("prefixes", nargs="*", default=["official/"], metavar="PREFIX")
    parser.add_argument("--seconds", type=float, default=600, help="time limit of a file")
    parser.add_argument("--record", action="store_true", help="record the counts of this run")
    args = parser.parse_args()
    args.work = args.work.resolve()
    port(args.work)
    records: dict[str, Any] = yaml.safe_load(RECORDS.read_text()) or {}
    found: dict[str, Outcome] = {}
    is_worse = False
    totals: collections.Counter[str] = collections.Counter()
    for file in sorted((args.work / "official").rglob("*_test.py")):
        path = file.relative_to(args.work).as_posix()
        if not path.startswith(tuple(args.prefixes)):
            continue
        found[path] = outcome = run(args.work, path, args.seconds)
        totals += collections.Counter({"passes": outcome.passes, "fails": len(outcome.errors)})
        lost = list(losses(outcome, records[path])) if path in records else []
        is_worse |= bool(lost)
        note = "" if path in records else " (not recorded)"
        print(f"{path}: {outcome.passes} pass, {len(outcome.errors)} fail{note}", flush=True)
        for line in lost:
            print(f"  LOST {line}", flush=True)
        is_complete = not outcome.errors.get("*", "").startswith(_TOO_LONG)
        if args.record and is_complete:
            record({path: outcome}, records)
    print(f"{len(found)} files: {totals['passes']} pass, {totals['fails']} fail")
    return int(is_worse and not args.record)


if __name__ == "__main__":
    sys.exit(main())
