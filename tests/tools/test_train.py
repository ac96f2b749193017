"""Tests of `python -m official_lite.tools train`, installed as `official-lite train`."""

import pathlib
import subprocess
import sys

from tests import commands
from tests.tools.conftest import EXPERIMENT

TOOLS = ["-m", "official_lite.tools"]


def test_train_command_trains_an_experiment_that_an_imported_file_registers(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "mine.py").write_text(EXPERIMENT)
    flags = ["--import=mine.py", "--experiment=tests/tools", "--mode=train", "--model_dir=run"]
    env = {"PYTHONPATH": str(commands.ROOT)}
    done = commands.run([*TOOLS, "train", *flags], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run" / "ckpt-6.index").exists()
    again = commands.run([*TOOLS, "train", *flags], cwd=tmp_path, env=env)
    assert "finished" in again.stderr


def test_train_command_finds_experiments_registered_in_the_working_directory() -> None:
    flags = ["--experiment=vision/digits_mlp", "--mode=train", "--model_dir=/none"]
    shown, expected = (
        subprocess.run(
            [sys.executable, *command, *flags, "--print_config"],
            cwd=commands.ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for command in ([*TOOLS, "train"], ["train.py"])
    )
    assert shown == expected


def test_error_for_a_value_with_unquoted_spaces_shows_the_quoted_form() -> None:
    flags = ["--experiment=vision/digits_mlp", "--mode=train", "--model_dir=/none"]
    done = commands.run([*TOOLS, "train", *flags, "--set=task.hidden_units=[64,", "64]"])
    assert done.returncode == 2
    assert "'--set=path=[1, 2]'" in done.stderr


def test_train_help_shows_the_description_and_the_flags() -> None:
    for program in (["train.py"], [*TOOLS, "train"]):
        done = commands.run([*program, "--help"])
        assert done.returncode == 0
        said = done.stdout
        assert said.startswith(
            "Train, evaluate or test a registered experiment, or predict with it."
        )
        assert "--experiment: " in said
        assert "enable_async_checkpointing: " in said


def test_dry_run_logs_the_memory_of_a_training_step(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.py").write_text(EXPERIMENT)
    flags = ["--import=mine.py", "--experiment=tests/tools", "--mode=train", "--model_dir=run"]
    done = commands.run([*TOOLS, "train", *flags, "--dry_run"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("Estimated memory")]
    assert len(lines) == 1
    assert " MiB (" in lines[0]
