import os
import pathlib

import pytest

from official_lite.common import errors
from official_lite.config import parsing
from official_lite.core import config_definitions as cfg


def test_placeholder_is_replaced_in_every_text_however_deep() -> None:
    params = cfg.ExperimentConfig()
    params.override(
        {
            "workspace": "/w",
            "pipeline": {"initialize": "{workspace}/stages.py:Start"},
            "task": {"train_data": {"input_path": ["{workspace}/a", "b"]}},
            "trainer": {
                "name": "{workspace}/t.py:T",
                "hooks": [{"name": "h", "files": [["{workspace}/x"], {"y": "{workspace}/y"}]}],
            },
            "phases": [{"name": "a", "overrides": {"task": {"name": "{workspace}/n"}}}],
        }
    )
    expanded = parsing.expand(params)
    assert expanded.pipeline.initialize == "/w/stages.py:Start"
    assert expanded.task.train_data.input_path == ["/w/a", "b"]
    assert expanded.trainer.name == "/w/t.py:T"
    assert expanded.trainer.hooks[0].as_dict()["files"] == [["/w/x"], {"y": "/w/y"}]
    assert expanded.phases[0].overrides.task.name == "/w/n"
    assert not parsing.uses_workspace(expanded)
    assert parsing.uses_workspace(params)


def test_placeholder_without_a_workspace_says_how_to_set_one() -> None:
    params = cfg.ExperimentConfig(task=cfg.TaskConfig(name="{workspace}/x"))
    with pytest.raises(errors.ConfigValueError, match="--set=workspace="):
        parsing.expand(params)


def test_default_is_used_and_recorded() -> None:
    params = cfg.ExperimentConfig(task=cfg.TaskConfig(name="{workspace}/x"))
    expanded = parsing.expand(params, default="/d")
    assert (expanded.task.name, expanded.workspace) == ("/d/x", "/d")
    assert parsing.expand(expanded, default="/other") == expanded


def test_workspace_that_is_named_becomes_absolute(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parsing.expand(cfg.ExperimentConfig(workspace="w")).workspace == str(tmp_path / "w")
    assert parsing.place("w", relative_to="/a/b") == os.path.join("/a/b", "w")
    assert parsing.place("gs://bucket/w") == "gs://bucket/w"


def test_workspace_in_terms_of_itself_is_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match="expected a directory"):
        parsing.expand(cfg.ExperimentConfig(workspace="{workspace}/x"))


def test_config_that_needs_none_stays_the_same_object() -> None:
    params = cfg.ExperimentConfig()
    assert parsing.expand(params, default="/d") is params
