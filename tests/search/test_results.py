"""Tables, best trials and plots of a study."""

import math
import pathlib

import optuna
import pytest

from official_lite import search
from official_lite.search import results
from tests.search import toys

SPACE = {"a.rate": {"type": "float", "low": 1e-3, "high": 1.0, "log": True}, "a.b.units": [1, 2]}


def test_results_table_of_a_study_has_a_line_for_each_trial(tmp_path) -> None:
    config = toys.config(metric="loss", num_trials=3)
    study = search.run_study(
        lambda trial: {"loss": trial.params["x"] / (trial.number != 1)}, config, str(tmp_path)
    )
    header, *lines = results.table(study, search.Space(config.space), config).splitlines()
    assert header.split() == ["trial", "state", "loss", "x", "seconds"]
    assert [line.split()[:2] for line in lines] == [
        ["0", "complete"],
        ["1", "fail"],
        ["2", "complete"],
    ]
    assert lines[1].split()[2] == "-"
    failed = results.records(study, search.Space(config.space), config)[1]
    assert (failed["number"], failed["state"], failed["values"]) == (1, "fail", {})


def test_parameter_names_are_shortened_only_if_they_stay_unique() -> None:
    names = ["a.rate", "a.b.units", "c.b.units", "d"]
    assert list(results.short_names(names).values()) == ["rate", "a.b.units", "c.b.units", "d"]


def test_trials_are_ranked_in_the_direction_of_the_metric() -> None:
    for direction, expected in {"minimize": [1, 0, 2], "maximize": [2, 0, 1]}.items():
        study = optuna.create_study(direction=direction)
        for value in (2.0, 1.0, 3.0):
            study.tell(study.ask(), value)
        study.tell(study.ask(), state=optuna.trial.TrialState.FAIL)
        # Earlier versions completed trials with an infinite value.
        study.tell(study.ask(), math.inf if direction == "maximize" else -math.inf)
        assert [trial.number for trial in results.best_trials(study)] == expected


def _names(paths: list[str]) -> list[str]:
    return [pathlib.Path(path).name for path in paths]


def test_study_is_plotted_to_image_files(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    config = toys.config(space=SPACE, metric="loss", num_trials=8)

    def evaluate(trial: search.TrialRun) -> dict[str, float]:
        for step in range(3):
            trial.report(trial.params["a.rate"] + trial.params["a.b.units"] / (step + 1))
        return {"loss": trial.params["a.rate"]}

    study = search.run_study(evaluate, config, str(tmp_path))
    paths = results.write_plots(study, config, str(tmp_path / "plots"))
    assert _names(paths) == [
        "optimization_history.png",
        "intermediate_values.png",
        "parallel_coordinate.png",
        "slice.png",
        "param_importances.png",
    ]
    assert all(pathlib.Path(path).read_bytes().startswith(b"\x89PNG") for path in paths)


def test_study_with_several_metrics_is_plotted_as_a_pareto_front(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    config = toys.config(metric=["loss", "size"], direction=["minimize", "maximize"], num_trials=6)
    study = search.run_study(
        lambda t: {"loss": t.params["x"] ** 2, "size": t.params["x"]}, config, str(tmp_path)
    )
    assert _names(results.write_plots(study, config, str(tmp_path))) == ["pareto_front.png"]
