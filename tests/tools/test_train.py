"""Tests of `python -m official_lite.tools train`, installed as `official-lite train`."""

import json
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


def test_error_for_a_flag_value_with_unquoted_spaces_shows_the_quoted_form() -> None:
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


PAGER = """

from official_lite import telemetry
from official_lite.core import writer_factory


@writer_factory.register_writer("pager")
class Pager(telemetry.Writer):
    def __init__(self, run):
        raise AssertionError("A dry run called the pager.")
"""


def test_dry_run_calls_no_service_and_writes_only_to_its_temporary_directory(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "mine.py").write_text(EXPERIMENT + PAGER)
    outside = tmp_path / "outside"
    best = {"name": "best_checkpoint", "metric": "validation_loss", "directory": f"{outside}/best"}
    pseudo = f"{outside}/predictions/*"
    fields = {
        "trainer.writers": ["jsonl", "pager"],
        "trainer.hooks": [
            {"name": "export_model", "subdir": f"{outside}/export"},
            {"name": "keras_callback", "callback": "CSVLogger", "filename": "log.csv"},
            {**best, "direction": "minimize"},
            {**best, "direction": "maximize", "directory": f"{outside}/loss/best"},
        ],
        "prediction.output_dir": f"{outside}/predictions",
        "phases": [
            {"name": "teacher", "overrides": {"trainer.hooks[2].direction": "maximize"}},
            {"name": "label", "mode": "predict", "init_from": "teacher"},
            {"name": "student", "overrides": {"task.train_data.input_path": pseudo}},
            {"name": "last", "init_from": "previous"},
        ],
    }
    flags = ["--import=mine.py", "--experiment=tests/tools", "--mode=train_and_eval", "--dry_run"]
    sets = [f"--set={name}={json.dumps(value)}" for name, value in fields.items()]
    done = commands.run([*TOOLS, "train", *flags, *sets, "--model_dir=run"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "__pycache__"}
    assert [line.split("`")[1] for line in done.stderr.splitlines() if "leaves out" in line] == [
        *("label", "student", "last")
    ]


def test_dry_run_of_several_workers_refuses_a_phase_that_starts_from_another_one(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "mine.py").write_text(EXPERIMENT)
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    of_first = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    environment = {"TF_CONFIG": json.dumps(of_first)}
    flags = ["--import=mine.py", "--experiment=tests/tools", "--mode=train", "--model_dir=run"]
    flags += ["--dry_run", "--set=runtime.distribution_strategy=multi_worker_mirrored"]
    flags += ["--set=phases=[{name: first}, {name: last, init_from: first}]"]
    done = commands.run([*TOOLS, "train", *flags], cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert "each worker has its own temporary directory" in done.stderr


def test_dry_run_of_phases_that_all_predict_runs_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.py").write_text(EXPERIMENT)
    flags = ["--import=mine.py", "--experiment=tests/tools", "--mode=train", "--model_dir=run"]
    phases = "--set=phases=[{name: label, mode: predict}]"
    done = commands.run([*TOOLS, "train", *flags, "--dry_run", phases], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "no phase is left" in done.stderr
    assert "Estimated memory" not in done.stderr
