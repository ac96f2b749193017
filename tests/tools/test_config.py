import json
import pathlib

import pytest

from official_lite.modeling.hyperparams import yaml_io
from official_lite.tools import __main__ as tools

NAME = "vision/digits_mlp"


def _out(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert tools.main(["config", *arguments]) == 0
    return capsys.readouterr().out


def test_config_show_prints_the_whole_config_or_a_part_as_yaml_or_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = yaml_io.parse_yaml(_out(capsys, "show", NAME), "shown")
    assert whole["trainer"]["train_steps"] == 600
    steps = "--set=trainer.train_steps=5"
    part = yaml_io.parse_yaml(_out(capsys, "show", NAME, "trainer", steps), "shown")
    assert part["train_steps"] == 5
    document = json.loads(_out(capsys, "show", NAME, "trainer.train_steps", "--json"))
    assert document == {"source": NAME, "kind": "experiment", "config": 600}


def test_config_diff_lists_separately_the_changes_that_a_restart_accepts(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "few.yaml"
    file.write_text("trainer: {train_steps: 7}\ntask: {train_data: {global_batch_size: 8}}\n")
    shown = _out(capsys, "diff", NAME, str(file))
    assert shown.splitlines() == [
        "task.train_data.global_batch_size: 64 -> 8",
        "",
        "A restarted run may continue with these differences:",
        "trainer.train_steps: 600 -> 7",
    ]
    document = json.loads(_out(capsys, "diff", NAME, str(file), "--json"))
    assert document["changes"][1] == {
        "path": "trainer.train_steps",
        "a": 600,
        "b": 7,
        "is_harmless": True,
    }
    assert _out(capsys, "diff", NAME, NAME) == "The configs are equal.\n"
