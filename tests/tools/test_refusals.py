"""Tests that a command that can't run prints the reason, writes nothing and returns its code."""

import pathlib

import pytest

from official_lite.tools import __main__ as tools
from tests import made_runs

# Each command, its exit code and a text in its message. `{tmp}` is an empty directory.
REFUSALS = [
    ("lunch", 2, "`launch`"),
    ("launch --workers=1 --max_restarts=1 -- no_such_program", 2, "no_such_program"),
    ("launch --elastic=3:4 --max_restarts=1 -- train.py", 2, "--elastic=2:4"),
    ("launch --elastic=1:1 --max_restarts=1 -- train.py", 2, "--workers=1"),
    ("average vision/digits_mlp", 2, "vision/digits_mlp"),
    ("average vision/digits_mlp --last=-1", 2, "--last"),
    ("export vision/digits_mlp", 2, "vision/digits_mlp"),
    ("export {tmp}", 2, "params.yaml"),
    ("experiments show vision/digits_mpl", 2, "`vision/digits_mlp`"),
    ("experiments list digits_mpl", 2, "`vision/digits_mlp`"),
    ("config show vision/digits_mlp trainer.train_step", 2, "`train_steps`"),
    ("config show vision/digits_mpl", 2, "`vision/digits_mlp`"),
    ("config show none.yaml", 2, "none.yaml"),
    ("config show {tmp}", 2, "run.json"),
    ("checkpoints list {tmp}", 5, "{tmp}"),
    ("verify {tmp}", 5, "checkpoints.chain.jsonl"),
    ("verify {tmp}/gone", 2, "{tmp}/gone"),
    ("search {tmp}", 2, "{tmp}"),
    ("report {tmp}", 2, "{tmp}"),
    ("tune lr vision/digits_mlp --steps=2", 2, "2 steps"),
    ("port {tmp}/nowhere.py", 2, "nowhere.py"),
    ("new {tmp}", 2, "{tmp}"),
    ("new {tmp}/demo --kind=images", 2, "`image`"),
    ("new {tmp}/my-demo", 2, "`my_demo`"),
    ("new {tmp}/2nd", 2, "'2nd'"),
    ("new {tmp}/class", 2, "`my_class`"),
    ("new {tmp}/json", 2, "`my_json`"),
    ("new {tmp}/train", 2, "`my_train`"),
]
# Commands with a mistyped run directory; the run is in `{tmp}/digits`.
MISTYPED = [
    "config show {tmp}/digit",
    "config diff vision/digits_mlp {tmp}/digit",
    "average {tmp}/digit",
    "runs list {tmp}/digit",
    "runs compare {tmp}/digits {tmp}/digit",
    "report {tmp}/digit",
    "checkpoints list {tmp}/digit",
    "verify {tmp}/digit",
    "reproduce {tmp}/digit --model_dir={tmp}/again",
    "predict {tmp}/digit",
    "search {tmp}/digit",
]
USAGE_ERRORS = [
    "launch --wokers=2 -- train.py",
    "data_service",
    "data_service helper",
    "data_service dispatcher",
    "data_service worker --port=1",
]


def test_command_that_cannot_run_names_the_mistake_and_writes_no_files(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, code, named in REFUSALS:
        found = tools.main(command.format(tmp=tmp_path).split())
        said = capsys.readouterr()
        result = (found, said.out, named.format(tmp=tmp_path) in said.err)
        assert result == (code, "", True), f"{command}: {said.err}"
    assert [*tmp_path.iterdir()] == []


def test_error_for_a_mistyped_run_directory_suggests_the_nearest_one(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_runs.make_run(tmp_path / "digits")
    for command in MISTYPED:
        assert tools.main(command.format(tmp=tmp_path).split()) == 2
        said = capsys.readouterr().err
        assert f"Did you mean `{tmp_path}/digits`?" in said, f"{command}: {said}"


def test_error_for_an_unknown_name_mentions_both_experiments_and_run_directories(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tools.main(["config", "show", "vision/digits_mpl"]) == 2
    said = capsys.readouterr().err
    assert "There is no experiment 'vision/digits_mpl'. Did you mean `vision/digits_mlp`" in said
    assert "There is no run directory 'vision/digits_mpl' either." in said


def test_invalid_arguments_exit_with_the_code_of_config_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in USAGE_ERRORS:
        with pytest.raises(SystemExit) as stop:
            tools.main(command.split())
        assert (stop.value.code, "usage:" in capsys.readouterr().err) == (2, True), command
