"""A command that can't be run says why before it writes anything, and has the exit code for it."""

import pathlib

import pytest

from official_lite.tools import __main__ as tools

# Command, exit code, and what the message names. `{tmp}` is an empty directory.
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
USAGE_ERRORS = [
    "launch --wokers=2 -- train.py",
    "data_service",
    "data_service helper",
    "data_service dispatcher",
    "data_service worker --port=1",
]


def test_refused_command_names_the_mistake_and_writes_nothing(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, code, named in REFUSALS:
        found = tools.main(command.format(tmp=tmp_path).split())
        said = capsys.readouterr()
        result = (found, said.out, named.format(tmp=tmp_path) in said.err)
        assert result == (code, "", True), f"{command}: {said.err}"
    assert [*tmp_path.iterdir()] == []


def test_wrong_arguments_have_the_exit_code_of_a_wrong_config(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in USAGE_ERRORS:
        with pytest.raises(SystemExit) as stop:
            tools.main(command.split())
        assert (stop.value.code, "usage:" in capsys.readouterr().err) == (2, True), command
