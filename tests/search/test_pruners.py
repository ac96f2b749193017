"""What ends trials early."""

import pathlib

import pytest

from official_lite import search
from official_lite.common import errors
from official_lite.search import pruners
from tests.search import toys

SETTINGS = {
    "median": {"n_startup_trials": 4},
    "successive_halving": {"min_resource": 1, "reduction_factor": 2},
    "hyperband": {"min_resource": 1, "max_resource": 9, "reduction_factor": 3},
}


def _steps(study_dir: pathlib.Path) -> int:
    notes = study_dir.glob("trials/*/notes.txt")
    return sum(len(path.read_text().splitlines()) for path in notes)


@pytest.mark.sample(1)
@pytest.mark.parametrize("pruner", list(SETTINGS))
def test_bad_trials_end_early_and_the_best_one_does_not(pruner: str, tmp_path) -> None:
    config = toys.config(pruner={"name": pruner, **SETTINGS[pruner]}, num_trials=20)
    study = search.run_study(toys.curve, config, str(tmp_path))
    states = [trial.state.name for trial in study.trials]
    assert set(states) == {"COMPLETE", "PRUNED"}
    assert _steps(tmp_path) < 20 * 9
    assert study.best_trial.value == min(t.value for t in study.trials)
    pruned = next(trial for trial in study.trials if trial.state.name == "PRUNED")
    assert pruned.value == pruned.intermediate_values[max(pruned.intermediate_values)]


def test_nothing_is_pruned_unless_asked(tmp_path) -> None:
    search.run_study(toys.curve, toys.config(num_trials=8), str(tmp_path))
    assert _steps(tmp_path) == 8 * 9


@pytest.mark.parametrize(
    "pruner",
    ["medain", {"name": "median", "n_startup": 3}, {"name": "hyperband", "max_resource": "x"}],
)
def test_mistake_in_the_pruner_is_an_error_of_the_config(pruner) -> None:
    with pytest.raises(errors.ConfigError):
        pruners.create_pruner(toys.config(pruner=pruner))
