"""Tests of `python -m official_lite.tools search`."""

import json

import pytest

from official_lite import search
from official_lite.tools import __main__ as tools
from tests.search import toys


def test_search_command_prints_the_trials_and_the_paths_of_the_plots(tmp_path, capsys) -> None:
    pytest.importorskip("matplotlib")
    search.run_study(toys.parabola, toys.config(num_trials=3), str(tmp_path))
    assert tools.main(["search", str(tmp_path), "--plots"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [[f"{n}", "complete"] for n in range(3)]
    assert str(tmp_path / "plots" / "optimization_history.png") in lines


def test_search_command_prints_trials_and_plots_as_one_json_document(tmp_path, capsys) -> None:
    search.run_study(toys.parabola, toys.config(num_trials=2), str(tmp_path))
    capsys.readouterr()
    assert tools.main(["search", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["plots"] == []
    fields = {"number", "state", "values", "params", "model_dir", "seconds"}
    assert all(trial.keys() == fields for trial in document["trials"])
    assert [trial["state"] for trial in document["trials"]] == ["complete"] * 2
