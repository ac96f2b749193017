"""The page on search tells the truth: each of its blocks runs."""

import json
import os
import pathlib
import re
import shlex

import pytest

from tests import commands

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "search.md").read_text()
ENVIRONMENT = {"PYTHONPATH": os.fspath(ROOT)}


def _blocks(name: str) -> list[str]:
    return re.findall(rf"<!-- {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)


def _run(name: str, cwd: pathlib.Path) -> str:
    (block,) = _blocks(name)
    _, *args = shlex.split(block.replace("\\\n", " "))
    if args[0] == "train.py":
        args[0] = str(ROOT / "train.py")
    done = commands.run(args, env=ENVIRONMENT, cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_study_of_the_page_runs_and_can_be_looked_at(tmp_path) -> None:
    (config,) = _blocks("config")
    (tmp_path / "search.yaml").write_text(config)
    _run("command", tmp_path)
    top = json.loads((tmp_path / "study" / "top_k.json").read_text())
    assert top[0]["values"]["accuracy"] > 0.5
    named = re.findall(r"^  ([\w.]+)/? {2,}", PAGE, re.MULTILINE)
    present = {path.name for path in (tmp_path / "study").iterdir()}
    assert {"search.yaml", "study.journal", "top_k.json"} <= {*named} & present
    _run("again", tmp_path)
    assert (tmp_path / "again" / "ckpt-80.index").exists()
    printed = _run("look", tmp_path)
    assert printed.count("complete") + printed.count("pruned") == 6
    assert (tmp_path / "study" / "plots" / "optimization_history.png").exists()


@pytest.mark.sample(1)
@pytest.mark.parametrize(("index", "printed"), [(0, "30 True\n"), (1, "5\n")])
def test_python_of_the_page_runs(index: int, printed: str, tmp_path) -> None:
    (tmp_path / "script.py").write_text(_blocks("python")[index])
    done = commands.run(["script.py"], env=ENVIRONMENT, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
