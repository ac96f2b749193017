"""Which strategy there is, and that what it draws depends on the study alone."""

import pathlib

import optuna
import pytest

from official_lite import search
from official_lite.common import errors
from official_lite.search import samplers, space
from tests.search import toys

STRATEGIES = pytest.mark.parametrize(
    "strategy", ["random", "tpe", "cma_es", "nsga2", "regularized_evolution"]
)

POINTS = {"a": [1, 2, 3], "b": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.5}}


def _tried(study) -> list[dict]:
    return [trial.params for trial in study.get_trials()]


def _small(strategy: str) -> dict:
    """A strategy that soon has trials enough to draw from them."""
    arguments = {
        "tpe": {"n_startup_trials": 4},
        "nsga2": {"population_size": 4},
        "regularized_evolution": {"population_size": 4, "sample_size": 2},
        "cma_es": {"popsize": 4},
    }
    return {"name": strategy, **arguments.get(strategy, {})}


def _run(strategy: str, study_dir: pathlib.Path, num_trials: int) -> list[dict]:
    searched = {**toys.SPACE, "y": {"type": "float", "low": 0.0, "high": 1.0}}
    config = toys.config(space=searched, strategy=_small(strategy), num_trials=num_trials)
    return _tried(search.run_study(toys.parabola, config, str(study_dir)))


@pytest.mark.sample(2)
@STRATEGIES
def test_study_that_goes_on_tries_what_an_unbroken_one_does(strategy: str, tmp_path) -> None:
    _run(strategy, tmp_path / "broken", 7)
    whole = _run(strategy, tmp_path / "whole", 14)
    assert _run(strategy, tmp_path / "broken", 14) == whole
    # Crossing may bring up the same once more.
    assert len({str(params) for params in whole}) > 10


@pytest.mark.sample(3)
@pytest.mark.parametrize("num_drawn", [0, 1])
@STRATEGIES
def test_trial_broken_off_while_it_was_drawn_is_drawn_as_ever(
    strategy: str, num_drawn: int, tmp_path, monkeypatch
) -> None:
    _run(strategy, tmp_path / "broken", 7)

    def break_off(self: space.Space, trial: optuna.trial.Trial) -> None:
        for name, one in list(self.distributions.items())[:num_drawn]:
            trial._suggest(name, one)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(space.Space, "suggest", break_off)
        with pytest.raises(KeyboardInterrupt):
            _run(strategy, tmp_path / "broken", 8)
    assert _run(strategy, tmp_path / "broken", 9) == _run(strategy, tmp_path / "whole", 9)


def test_grid_tries_each_point_once_and_ends(tmp_path) -> None:
    config = toys.config(space=POINTS, strategy="grid", num_trials=100)
    study = search.run_study(lambda trial: trial.params["a"], config, str(tmp_path))
    assert len(study.trials) == 9
    assert len({str(params) for params in _tried(study)}) == 9


def test_grid_needs_an_end_of_values() -> None:
    config = toys.config(strategy="grid")
    with pytest.raises(errors.ConfigValueError, match=r"\['x'\] have infinitely many values"):
        samplers.create_sampler(config, search.Space(config.space))


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("regularised_evolution", "Did you mean `regularized_evolution`"),
        ({"name": "tpe", "n_startup": 3}, "`n_startup_trials`"),
        ({"name": "nsga2", "population_size": 1}, "population_size"),
    ],
)
def test_mistake_in_the_strategy_is_answered(strategy, words: str) -> None:
    config = toys.config(strategy=strategy)
    with pytest.raises(errors.ConfigError, match=words):
        samplers.create_sampler(config, search.Space(config.space))


def test_tpe_comes_nearer_than_its_random_start(tmp_path) -> None:
    config = toys.config(strategy={"name": "tpe", "n_startup_trials": 8}, num_trials=30)
    trials = search.run_study(toys.parabola, config, str(tmp_path)).trials
    assert min(t.value for t in trials[8:]) < min(t.value for t in trials[:8])


def test_nsga2_finds_both_ends_of_a_front(tmp_path) -> None:
    config = toys.config(
        metric=["near_0", "near_2"],
        direction=["minimize", "minimize"],
        strategy={"name": "nsga2", "population_size": 10},
        num_trials=60,
    )

    def evaluate(trial: search.TrialRun) -> dict[str, float]:
        x = trial.params["x"]
        return {"near_0": x**2, "near_2": (x - 2) ** 2}

    study = search.run_study(evaluate, config, str(tmp_path))
    front = [trial.params["x"] for trial in study.best_trials]
    assert all(-0.5 < x < 2.5 for x in front)
    assert min(front) < 0.5
    assert max(front) > 1.5


def test_single_metric_strategy_refuses_several() -> None:
    config = toys.config(direction=["minimize", "maximize"], strategy="cma_es")
    with pytest.raises(errors.ConfigValueError, match="nsga2"):
        samplers.create_sampler(config, search.Space(config.space))
