"""`python -m official_lite.tools new`."""

import json
import pathlib
import subprocess
import sys

import pytest

from official_lite.tools import __main__ as tools
from tests import commands

ROOT = pathlib.Path(__file__).parents[2]


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


def test_project_trains_and_what_it_registers_can_be_found_by_others(
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


@pytest.mark.slow
def test_test_of_the_project_passes(project: pathlib.Path) -> None:
    done = commands.run(["-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=project)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "2 passed" in done.stdout


@pytest.mark.slow
def test_project_is_in_order_for_ruff_and_mypy(project: pathlib.Path) -> None:
    _check_by_tools_of_the_user(project)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my-demo", "`my_demo` can."),
        ("2nd", "is not a valid name of a Python package."),
        ("class", "Use another name, such as `my_class`."),
        ("json", "hide the existing module 'json'"),
        ("train", "hide the existing module 'train'"),
    ],
)
def test_bad_name_is_refused_and_nothing_written(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], name: str, told: str
) -> None:
    assert tools.main(["new", str(tmp_path / name)]) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_not_overwritten(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo").mkdir()
    assert tools.main(["new", str(tmp_path / "demo")]) == 2
    assert "already exists" in capsys.readouterr().err
    assert list((tmp_path / "demo").iterdir()) == []
