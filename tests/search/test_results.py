"""Tables and best trials."""

import math

import optuna

from official_lite import search
from official_lite.search import results
from tests.search import toys


def test_table_has_a_line_for_each_trial(tmp_path) -> None:
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


def test_names_are_as_short_as_they_can_be() -> None:
    names = ["a.rate", "a.b.units", "c.b.units", "d"]
    assert list(results.short_names(names).values()) == ["rate", "a.b.units", "c.b.units", "d"]


def test_best_come_first_in_either_direction() -> None:
    for direction, expected in {"minimize": [1, 0, 2], "maximize": [2, 0, 1]}.items():
        study = optuna.create_study(direction=direction)
        for value in (2.0, 1.0, 3.0):
            study.tell(study.ask(), value)
        study.tell(study.ask(), state=optuna.trial.TrialState.FAIL)
        # Earlier versions completed such trials.
        study.tell(study.ask(), math.inf if direction == "maximize" else -math.inf)
        assert [trial.number for trial in results.best_trials(study)] == expected


def test_best_of_several_metrics_are_the_front() -> None:
    study = optuna.create_study(directions=["minimize", "maximize"])
    for values in ((1.0, 1.0), (2.0, 0.0), (2.0, 2.0)):
        study.tell(study.ask(), values)
    assert [trial.number for trial in results.best_trials(study)] == [0, 2]
