"""Tests of `python -m official_lite.tools new`."""

import ast
import json
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from benchmarks import chaos
from official_lite.tools import __main__ as tools
from tests import commands

ROOT = pathlib.Path(__file__).parents[2]

KILLER = """
import os
import signal

from official_lite import orbit


class Killer(orbit.Hook):
    every_n_steps = 70

    def after_step(self):
        # Once the checkpoint of step 60 is complete.
        self.controller.checkpoint_manager.sync()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def _check_by_tools_of_the_user(project: pathlib.Path) -> None:
    for arguments in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]):
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=project, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("new") / "demo_lines"
    assert tools.main(["new", str(folder)]) == 0
    return folder


def test_generated_project_trains_and_declares_its_experiment_as_an_entry_point(
    project: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    model_dir = tmp_path / "run"
    done = commands.run(
        [
            "train.py",
            "--experiment=demo_lines/lines",
            "--mode=train_and_eval",
            f"--model_dir={model_dir}",
            "--config_file=smaller.yaml",
        ],
        cwd=project,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *_, last = (model_dir / "metrics.json").read_text().splitlines()
    assert json.loads(last)["step"] == 100
    sources = "".join(path.read_text() for path in project.rglob("*.py"))
    assert "experiments." not in sources
    assert 'demo_lines = "demo_lines.configs"' in (project / "pyproject.toml").read_text()


def test_train_py_of_a_generated_project_has_the_flags_of_the_train_command(
    project: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    flags = ["--experiment=demo_lines/lines", "--mode=train", f"--model_dir={tmp_path}/run"]
    flags += ["--config_file=smaller.yaml", "--dry_run", "--noenable_async_checkpointing"]
    done = commands.run(["train.py", *flags], cwd=project)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Estimated memory of a training step" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_generated_project_passes_its_own_tests(project: pathlib.Path) -> None:
    done = commands.run(["-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=project)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "2 passed" in done.stdout


@pytest.mark.slow
def test_generated_project_passes_ruff_and_mypy(project: pathlib.Path) -> None:
    _check_by_tools_of_the_user(project)


@pytest.fixture(scope="module", params=["image", "tabular", "text"])
def kind_of_project(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
    folder = tmp_path_factory.mktemp(request.param) / "demo"
    assert tools.main(["new", str(folder), f"--kind={request.param}"]) == 0
    return folder


def _shown(project: pathlib.Path, language: str, tmp: pathlib.Path) -> list[str]:
    """Return the code blocks of the README, with `/tmp` replaced by another directory."""
    readme = (project / "README.md").read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", readme, re.DOTALL)
    return [block.replace("/tmp/", f"{tmp}/") for block in blocks]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_generated_project_of_each_kind_trains_resumes_after_a_kill_and_predicts(
    kind_of_project: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    training, export = _shown(kind_of_project, "bash", tmp_path)
    command = training.splitlines()[0].split()[1:]
    unbroken, killed = tmp_path / "demo", tmp_path / "killed"
    assert f"--model_dir={unbroken}" in command

    def start(model_dir: pathlib.Path, *flags: str) -> int:
        # Start a new process, so that the results would reveal a dependence on string hashes.
        often = ["--set=trainer.checkpoint_interval=20", "--set=runtime.execution=graph"]
        return subprocess.run(
            [sys.executable, *command, *often, f"--model_dir={model_dir}", *flags],
            cwd=kind_of_project,
            stderr=subprocess.DEVNULL,
        ).returncode

    assert start(unbroken) == 0
    (tmp_path / "killer.py").write_text(KILLER)
    killer = f"--set=trainer.hooks=['{tmp_path}/killer.py:Killer']"
    assert start(killed, killer) == -signal.SIGKILL
    assert (killed / "ckpt-60.commit.json").exists()
    assert not (killed / "ckpt-80.commit.json").exists()
    assert start(killed) == 0
    expected = chaos.what_is_left(unbroken)
    assert expected["last/path"] == "ckpt-300"
    assert chaos.differences(expected, chaos.what_is_left(killed)) == []

    assert commands.run(export.split()[1:], cwd=kind_of_project).returncode == 0
    (code,) = _shown(kind_of_project, "python", tmp_path)
    script = kind_of_project / "predict.py"
    script.write_text(code)
    done = commands.run([script], cwd=kind_of_project)
    script.unlink()
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(ast.literal_eval(done.stdout.splitlines()[-1])) in (
        {"diamond", "disc", "square"},
        {"cancelled", "yearly"},
        {"billing", "delivery"},
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_generated_project_of_each_kind_passes_ruff_mypy_and_its_own_tests(
    kind_of_project: pathlib.Path,
) -> None:
    _check_by_tools_of_the_user(kind_of_project)
    done = commands.run(["-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=kind_of_project)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "2 passed" in done.stdout


def test_error_for_a_non_numeric_csv_value_names_its_row_and_column(
    tmp_path: pathlib.Path,
) -> None:
    project = tmp_path / "demo"
    assert tools.main(["new", str(project), "--kind=tabular"]) == 0
    table = project / "data" / "train.csv"
    table.write_text(re.sub(r"(?m)\A(.*\n)\d+,", r"\1many,", table.read_text()))
    command, *_ = _shown(project, "bash", tmp_path)
    done = commands.run(command.splitlines()[0].split()[1:], cwd=project)
    assert done.returncode == 3
    assert "data/train.csv, row 2: 'many' in the column 'months'" in done.stderr
