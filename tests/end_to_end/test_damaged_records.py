"""Damaged or special files in a run directory.

The faults are listed in docs/reliability.md.
"""

import itertools
import os
import pathlib
import shutil
from collections.abc import Callable

import pytest

from official_lite.common import errors
from tests import commands

_ARGS = [
    "train.py",
    "--experiment=vision/digits_mlp",
    "--mode=train_and_eval",
    "--set=trainer.checkpoint_interval=5",
    "--set=trainer.validation_interval=5",
    "--set=trainer.steps_per_loop=5",
    "--set=runtime.execution=graph",
    "--set=runtime.distribution_strategy=off",
    "--set=trainer.writers=[jsonl, tensorboard, csv]",
    "--set=trainer.best_checkpoint_export_subdir=best_ckpt",
]
_RECORDS = [
    *("run.json", "goodput.json", "best_ckpt/info.json"),
    *("metrics_train.csv", "metrics.json", "params.yaml"),
]
_FILES = [*_RECORDS, "log.txt", "checkpoint", "ckpt-5.commit.json", "best_ckpt/checkpoint", ".lock"]


def _outside(path: pathlib.Path) -> None:
    path.symlink_to(path.parents[1] / "outside")


def _loop(path: pathlib.Path) -> None:
    path.symlink_to(path.name)


_KINDS = {"directory": os.mkdir, "loop": _loop, "pipe": os.mkfifo}


def _train(model_dir: pathlib.Path, steps: int) -> tuple[int, str]:
    command = [*_ARGS, f"--model_dir={model_dir}", f"--set=trainer.train_steps={steps}"]
    result = commands.run(command)
    return result.returncode, result.stderr


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    model_dir = tmp_path_factory.mktemp("base") / "run"
    assert _train(model_dir, 5)[0] == 0
    return model_dir


def _copy(base: pathlib.Path, tmp_path: pathlib.Path, name: str) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(base, tmp_path / name))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\0" * 99,
        b"[" * 200_000,
        *(pytest.param(content, marks=pytest.mark.slow) for content in (b"", b"{", b"[]\n")),
    ],
)
def test_run_with_damaged_record_files_resumes_and_trains_to_the_last_step(
    base: pathlib.Path, tmp_path: pathlib.Path, content: bytes
) -> None:
    model_dir = _copy(base, tmp_path, "run")
    for name in _RECORDS:
        (model_dir / name).write_bytes(content)
    code, told = _train(model_dir, 10)
    assert code == 0, told[-2000:]
    assert (model_dir / "ckpt-10.commit.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [*zip(_FILES, itertools.cycle(_KINDS))])
def test_directory_pipe_or_link_loop_in_place_of_a_run_file_causes_at_most_a_one_line_error(
    base: pathlib.Path, tmp_path: pathlib.Path, kind: str, name: str
) -> None:
    model_dir = _copy(base, tmp_path, "run")
    (model_dir / name).unlink(missing_ok=True)
    make: Callable[[pathlib.Path], None] = _KINDS[kind]
    make(model_dir / name)
    code, told = _train(model_dir, 10)
    assert "Traceback" not in told
    assert code in (0, errors.ExitCode.CONFIG, errors.ExitCode.CHECKPOINT), told[-2000:]
    if code:
        assert name in told.splitlines()[-1]


@pytest.mark.parametrize("name", ["log.txt", "metrics.json", "metrics_train.csv"])
def test_run_does_not_write_through_a_symlink_in_place_of_a_log_or_metrics_file(
    base: pathlib.Path, tmp_path: pathlib.Path, name: str
) -> None:
    model_dir = _copy(base, tmp_path, "run")
    (tmp_path / "outside").write_text("precious\n")
    (model_dir / name).unlink()
    _outside(model_dir / name)
    code, told = _train(model_dir, 10)
    assert (tmp_path / "outside").read_text() == "precious\n"
    assert code in (0, errors.ExitCode.CONFIG), told[-2000:]
    assert "Traceback" not in told


def test_named_pipe_as_config_file_is_refused(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    args = [*_ARGS, f"--model_dir={tmp_path / 'run'}", f"--config_file={tmp_path / 'pipe.yaml'}"]
    result = commands.run(args)
    assert result.returncode == errors.ExitCode.CONFIG
    assert "named pipe" in result.stderr
