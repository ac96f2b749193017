"""Check whether the tests notice deliberate errors (mutants) in the package.

    python -m benchmarks.mutation
    python -m benchmarks.mutation trial_training "same step"

Each mutant in `mutants.py` replaces one piece of the source in a copy of the repository and runs
the test files that are expected to notice. A mutant is killed if a test fails; the slow tests run
only if no other test fails. The tree itself is never changed. Arguments select the mutants whose
module or description contains one of them.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from benchmarks.mutation import mutants

ROOT = pathlib.Path(__file__).parents[2]

# Files that are not copied, because the tests do not need them.
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "results", "*.egg-info")

_MAX_SECONDS = 900
_TESTS_FAILED, _NO_TESTS = 1, 5


class BrokenTestsError(Exception):
    """The tests can't judge a mutant, because they fail without it or can't run."""


def main() -> None:
    """Run the selected mutants, and print a line for each mutant and the number of killed ones."""
    parser = argparse.ArgumentParser(
        description="Check whether the tests notice deliberate errors."
    )
    parser.add_argument("words", nargs="*", help="parts of modules or descriptions; default: all")
    chosen = select(parser.parse_args().words)
    for mutant in chosen:
        mutated(mutant, ROOT)
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        copy = pathlib.Path(directory) / "repository"
        shutil.copytree(ROOT, copy, ignore=_LEFT_OUT)
        _require_passing(sorted({file for mutant in chosen for file in mutant.tests}), copy)
        killed = sum(_is_killed(mutant, copy) for mutant in chosen)
    print(f"{killed} of {len(chosen)} killed ({100 * killed / len(chosen):.0f} %).")
    print(f"{len(mutants.EXCLUDED)} more are excluded, with reasons in `mutants.py`.")
    sys.exit(killed < len(chosen))


def select(words: Sequence[str]) -> list[mutants.Mutant]:
    """Return the mutants whose module or description contains one of the words, or all mutants.

    Raises:
        SystemExit: No mutant matches.
    """
    chosen = [m for m in mutants.MUTANTS if not words or any(word in str(m) for word in words)]
    if not chosen:
        sys.exit(f"No mutant's module or description contains any of {list(words)}.")
    return chosen


def mutated(mutant: mutants.Mutant, root: pathlib.Path) -> str:
    """Return the source of the mutant's module below `root`, with the replacement.

    Raises:
        ValueError: The module is missing, or does not contain the snippet exactly once.
    """
    path = root / "official_lite" / mutant.module
    source = path.read_text(encoding="utf-8") if path.exists() else ""
    if (count := source.count(mutant.snippet)) != 1:
        raise ValueError(
            f"The snippet of the mutant `{mutant}` occurs {count} times in {path}; expected once. "
            "Update the snippet to the current code, or move the mutant to `EXCLUDED`."
        )
    return source.replace(mutant.snippet, mutant.replacement)


@contextlib.contextmanager
def _applied(mutant: mutants.Mutant, copy: pathlib.Path) -> Iterator[None]:
    path = copy / "official_lite" / mutant.module
    source = path.read_text(encoding="utf-8")
    path.write_text(mutated(mutant, copy), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(source, encoding="utf-8")


def _require_passing(tests: Sequence[str], copy: pathlib.Path) -> None:
    print(f"Running {len(tests)} test files without mutants.", flush=True)
    code, output = _run_tests(tests, copy)
    if code != 0:
        raise BrokenTestsError(f"The tests fail without mutants:\n{output}")


def _is_killed(mutant: mutants.Mutant, copy: pathlib.Path) -> bool:
    started = time.monotonic()
    verdict = "survived"
    for killed, options in (("killed", []), ("killed by a slow test", ["-m", "slow"])):
        with _applied(mutant, copy):
            code, output = _run_tests(mutant.tests, copy, options)
        # A mutant is also killed if a test hangs or the test process crashes. Other exit codes mean
        # that pytest did not run the tests.
        if code is None or code < 0 or code == _TESTS_FAILED:
            verdict = killed
            break
        if code not in (0, _NO_TESTS):
            raise BrokenTestsError(f"The tests can't run with the mutant `{mutant}`:\n{output}")
    print(f"{verdict:8} {mutant} ({time.monotonic() - started:.0f} s)", flush=True)
    return verdict != "survived"


def _run_tests(
    tests: Sequence[str], copy: pathlib.Path, options: Sequence[str] = ()
) -> tuple[int | None, str]:
    """Return the exit code of pytest, or `None` if it takes too long, and the end of its output."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += [*options, *tests]
    # The copy takes precedence over an installed package. Bytecode is not cached, because a mutant
    # may have the size and the modification time of the original file.
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            timeout=_MAX_SECONDS * len(tests),
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, (done.stdout + done.stderr)[-4000:]


if __name__ == "__main__":
    main()
