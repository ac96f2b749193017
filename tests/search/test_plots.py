"""Pictures of a study."""

import pathlib

import pytest

from official_lite import search
from official_lite.search import plots
from tests.search import toys

SPACE = {"a.rate": {"type": "float", "low": 1e-3, "high": 1.0, "log": True}, "a.b.units": [1, 2]}


def _names(paths: list[str]) -> list[str]:
    return [pathlib.Path(path).name for path in paths]


def test_study_is_drawn(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    config = toys.config(space=SPACE, metric="loss", num_trials=8)

    def evaluate(trial: search.TrialRun) -> dict[str, float]:
        for step in range(3):
            trial.report(trial.params["a.rate"] + trial.params["a.b.units"] / (step + 1))
        return {"loss": trial.params["a.rate"]}

    study = search.run_study(evaluate, config, str(tmp_path))
    paths = plots.write_plots(study, config, str(tmp_path / "plots"))
    assert _names(paths) == [
        "optimization_history.png",
        "intermediate_values.png",
        "parallel_coordinate.png",
        "slice.png",
        "param_importances.png",
    ]
    assert all(pathlib.Path(path).read_bytes().startswith(b"\x89PNG") for path in paths)


def test_what_there_is_nothing_of_is_not_drawn(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    config = toys.config(num_trials=1)
    study = search.run_study(toys.parabola, config, str(tmp_path))
    names = _names(plots.write_plots(study, config, str(tmp_path / "plots")))
    assert "optimization_history.png" in names
    assert "intermediate_values.png" not in names


def test_several_metrics_are_drawn_as_a_front(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    config = toys.config(metric=["loss", "size"], direction=["minimize", "maximize"], num_trials=6)
    study = search.run_study(
        lambda t: {"loss": t.params["x"] ** 2, "size": t.params["x"]}, config, str(tmp_path)
    )
    assert _names(plots.write_plots(study, config, str(tmp_path))) == ["pareto_front.png"]
