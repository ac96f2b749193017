"""A training on any source of rows ends the same, however often it is killed."""

import subprocess
import sys

import pytest

from tests import commands, row_files


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", row_files.NAMES)
def test_killed_trainings_end_like_an_undisturbed_one(name):
    # A process of its own, whose forks have no threads of other tests.
    command = [sys.executable, "-m", "benchmarks.source_kills", "--kills=2", f"--formats={name}"]
    done = subprocess.run(command, cwd=commands.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "2 kills after" in done.stdout
    assert "equal bit for bit" in done.stdout
