"""Runs whose memory is exhausted in one of their parts; docs/reliability.md lists these faults."""

import functools
import itertools
import json
import pathlib
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from official_lite.common import errors
from tests import commands

_GB = 10**9
# A module that exhausts the memory when PART of a run begins: it maps the address space except for
# REST bytes, or fills the memory of the control group.
HOG = """
import mmap
import os
import resource
import sys

import keras

from experiments.vision.digits import task
from official_lite.checkpoint import async_checkpoint_manager, committed_checkpoint_manager
from official_lite.core import base_trainer

kept = []


def hog():
    if group := os.environ.get("GROUP"):
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
        kept.append(b"x" * 1_000_000_000)  # The kernel kills the process here.
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * mmap.PAGESIZE
    size = limit - size - int(os.environ["REST"])
    # A read-only mapping needs no memory, only addresses.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    kept.append(mmap.mmap(-1, size // mmap.PAGESIZE * mmap.PAGESIZE, flags, mmap.PROT_READ))
    print("hog", file=sys.stderr, flush=True)


def before(cls, name, part):
    method = getattr(cls, name)

    def wrapped(*args, **kwargs):
        if os.environ.get("PART") == part and not kept:
            hog()
        return method(*args, **kwargs)

    setattr(cls, name, wrapped)


before(task.DigitsTask, "build_inputs", "reading data")
before(task.DigitsTask, "build_model", "building the model")
before(base_trainer.Trainer, "train_loop_begin", "first step")
before(committed_checkpoint_manager.CommittedCheckpointManager, "save", "save")
before(async_checkpoint_manager.AsyncCheckpointManager, "save", "background save")
before(base_trainer.Trainer, "evaluate", "evaluation")
before(keras.Model, "export", "export")
"""
PARTS = [
    "reading data",
    "building the model",
    "first step",
    "save",
    "background save",
    "evaluation",
]
# The codes with which native code ends a process that cannot allocate memory: an exit code of glibc
# and two signals.
_CRASHES = {127, -signal.SIGABRT, -signal.SIGSEGV}


def _command(directory: pathlib.Path) -> list[str]:
    (directory / "hog.py").write_text(HOG)
    return [
        "train.py",
        f"--import={directory / 'hog.py'}",
        "--experiment=vision/digits_mlp",
        "--mode=train_and_eval",
        f"--model_dir={directory / 'run'}",
        "--set=runtime={execution: graph, distribution_strategy: 'off'}",
        "--set=task.model.units=[1000, 1000]",
        "--set=trainer={train_steps: 40, steps_per_loop: 10, summary_interval: 10, "
        "checkpoint_interval: 10, validation_interval: 20}",
    ]


def _weights(directory: pathlib.Path) -> bytes:
    return (directory / "run" / "ckpt-40.data-00000-of-00001").read_bytes()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the last checkpoint of an uninterrupted run, which has enough memory."""
    directory = tmp_path_factory.mktemp("unbroken")
    done = commands.run(_command(directory))
    assert done.returncode == 0, done.stderr
    return _weights(directory)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "rest"), [*zip(PARTS, itertools.cycle([0, 30_000_000]))])
def test_exhausted_address_space_is_reported_and_the_repeated_command_resumes_the_run(
    tmp_path: pathlib.Path, unbroken: bytes, part: str, rest: int
) -> None:
    command = _command(tmp_path)
    environment = {"PART": part, "REST": str(rest)}
    failed = commands.run(command, env=environment, address_space=100 * _GB)
    assert "hog" in failed.stderr
    assert "`ulimit -v` limits the address space of this process to 100.0 GB" in failed.stderr
    assert failed.returncode in {errors.ExitCode.FAILED, *_CRASHES}, failed.stderr
    if failed.returncode == errors.ExitCode.FAILED:
        said = failed.stderr.splitlines()[-1]
        assert said.startswith("OutOfMemoryError: The memory is exhausted"), failed.stderr
    again = commands.run(command)
    assert again.returncode == 0, again.stderr
    assert _weights(tmp_path) == unbroken


@pytest.mark.slow
def test_export_that_runs_out_of_memory_reports_the_limit_and_can_be_repeated(
    tmp_path: pathlib.Path,
) -> None:
    assert commands.run(_command(tmp_path)).returncode == 0
    export = ["-m", "official_lite.tools", "export", tmp_path / "run", "--experiment"]
    export += ["vision/digits_mlp", f"--import={tmp_path / 'hog.py'}"]
    environment = {"PART": "export", "REST": "0"}
    failed = commands.run(export, env=environment, address_space=100 * _GB)
    assert "hog" in failed.stderr
    assert failed.returncode in {errors.ExitCode.FAILED, *_CRASHES}, failed.stderr
    assert "`ulimit -v` limits the address space of this process to 100.0 GB" in failed.stderr
    assert commands.run(export).returncode == 0


def _limited(*args: str, address_space: int) -> subprocess.CompletedProcess[str]:
    """Run Python with an address space limit that applies from the start."""
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_AS, (address_space,) * 2)
    return subprocess.run(
        [sys.executable, *args],
        cwd=commands.ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )


@pytest.mark.slow
def test_report_that_runs_out_of_memory_raises_a_one_line_error_and_writes_no_page(
    tmp_path: pathlib.Path,
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    record = json.dumps({"step": 1, "split": "train", "loss": 0.5, "text": "x" * 1000}) + "\n"
    (run / "metrics.json").write_text(record * 200_000)
    (run / "run.json").write_text(json.dumps({"experiment": "vision/digits_mlp"}))
    page = tmp_path / "report.html"
    command = ["-m", "official_lite.tools", "report", str(run), f"--output={page}"]
    failed = _limited(*command, address_space=300_000_000)
    assert failed.returncode == errors.ExitCode.FAILED
    (said,) = failed.stderr.splitlines()
    assert said.startswith("OutOfMemoryError: The memory is exhausted: "), failed.stderr
    assert "End other programs" in said
    assert not page.exists()
    assert _limited(*command, address_space=20 * _GB).returncode == 0
    assert page.exists()


@pytest.mark.slow
def test_memory_limit_too_low_for_tensorflow_is_refused_before_the_run_starts(
    tmp_path: pathlib.Path,
) -> None:
    failed = _limited(*_command(tmp_path), address_space=1_500_000_000)
    assert failed.returncode == errors.ExitCode.FAILED
    assert failed.stderr.splitlines()[-1] == (
        "OutOfMemoryError: The memory is too small: `ulimit -v` limits the address space of this "
        "process to 1.5 GB, and TensorFlow needs at least 2 GB to start. Raise the limit or remove "
        "it with `ulimit -v unlimited`."
    )
    assert not (tmp_path / "run").exists()


@pytest.fixture
def control_group() -> Iterator[pathlib.Path]:
    """Create a control group that limits its processes to 500 MB."""
    group = pathlib.Path("/sys/fs/cgroup/memory/official_lite_test")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs control groups, version 1, and root")
    (group / "memory.limit_in_bytes").write_text("500M")
    yield group
    group.rmdir()


@pytest.mark.slow
@pytest.mark.parametrize("part", ["first step", "background save"])
def test_run_killed_when_out_of_memory_ends_with_the_weights_of_an_uninterrupted_run(
    tmp_path: pathlib.Path, unbroken: bytes, control_group: pathlib.Path, part: str
) -> None:
    command = _command(tmp_path)
    failed = commands.run(command, env={"PART": part, "GROUP": str(control_group), "REST": "0"})
    assert failed.returncode == -signal.SIGKILL
    assert commands.run(command).returncode == 0
    assert _weights(tmp_path) == unbroken
