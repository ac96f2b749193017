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


def test_search_command_names_the_best_trials_and_the_config_in_its_last_line(
    tmp_path, capsys
) -> None:
    def last_line(directory) -> str:
        capsys.readouterr()
        assert tools.main(["search", str(directory)]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    one, two = tmp_path / "one", tmp_path / "two"
    search.run_study(
        lambda trial: [3.0, 1.0, 2.0][trial.number], toys.config(num_trials=3), str(one)
    )
    assert last_line(one) == "The best is trial 1: value 1."
    config = one / "trials" / "0001" / "params.yaml"
    config.touch()
    assert f"To train trial 1 again, pass --config_file={config} " in last_line(one)
    goals = toys.config(metric=["a", "b"], direction=["minimize", "maximize"], num_trials=3)
    values = [{"a": 1, "b": 1}, {"a": 2, "b": 0}, {"a": 2, "b": 2}]
    search.run_study(lambda trial: values[trial.number], goals, str(two))
    assert last_line(two) == "On the Pareto front: trials 0 and 2."


def test_search_command_prints_trials_and_plots_as_one_json_document(tmp_path, capsys) -> None:
    search.run_study(toys.parabola, toys.config(num_trials=2), str(tmp_path))
    capsys.readouterr()
    assert tools.main(["search", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["plots"] == []
    fields = {"number", "state", "values", "params", "model_dir", "seconds"}
    assert all(trial.keys() == fields for trial in document["trials"])
    assert [trial["state"] for trial in document["trials"]] == ["complete"] * 2
