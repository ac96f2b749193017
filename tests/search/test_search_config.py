"""The `search` block of an experiment config."""

import json

import numpy as np
import optuna
import pytest

from official_lite import search
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.search import search_config
from tests.search import toys


def test_model_garden_directions_higher_and_lower_are_accepted() -> None:
    config = toys.config(metric=["accuracy", "loss"], direction=["higher", "lower"])
    assert config.directions == ["maximize", "minimize"]


def test_search_without_a_direction_is_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match="There is no default"):
        toys.config(direction="").validate()


@pytest.mark.parametrize(
    "fields",
    [
        {"metric": ["a", "b"], "direction": "minimize"},
        {"metric": ["a", "b"], "direction": ["minimize", "minimize"], "pruner": "median"},
        {"metric": ["a", "b"], "direction": ["minimize", "minimize"], "final_value": "best"},
        {"mode": "eval"},
        {"mode": "continuous_train_and_eval"},
        {"isolation": "container"},
        {"num_trials": 0},
    ],
)
def test_invalid_search_config_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(errors.ConfigValueError):
        toys.config(**fields).validate()


def test_errors_for_a_missing_search_block_or_a_misspelled_field_suggest_the_remedy() -> None:
    with pytest.raises(errors.ConfigValueError, match="Set its `space`"):
        search_config.search_config_of(cfg.ExperimentConfig())
    with pytest.raises(errors.UnknownKeyError, match="`direction`"):
        search_config.search_config_of(cfg.ExperimentConfig(search={"derection": "minimize"}))


ENTRIES = {
    "trainer.rate": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True},
    "task": {
        "depth": {"type": "int", "low": 1, "high": 3},
        "units": [[32], [64, 64]],
        "arch": {"block/0": {"type": "categorical", "choices": ["conv", "pool", None]}},
    },
}


def test_sampled_hyperparameters_are_in_the_search_space_and_keep_their_types() -> None:
    space = search_config.Space(ENTRIES)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(20):
        drawn = space.suggest(study.ask())
        assert 1e-4 <= drawn["trainer.rate"] <= 1e-1
        assert drawn["task.depth"] in (1, 2, 3)
        assert drawn["task.units"] in ([32], [64, 64])
        assert drawn["task.arch.block/0"] in ("conv", "pool", None)


def test_search_space_choices_that_are_equal_in_python_are_distinguished_by_type(tmp_path) -> None:
    choices = [0, False, 1, True, 1.0, "[1]", [1], "false", {"a": 1}, None]
    seen = []

    def evaluate(trial: search.TrialRun) -> float:
        seen.append(trial.params["x"])
        return float(len(seen))

    config = {"space": {"x": choices}, "direction": "maximize", "strategy": "grid"}
    config = search.SearchConfig({**config, "num_trials": len(choices)})
    study = search.run_study(evaluate, config, str(tmp_path))
    shown = sorted(map(repr, choices))
    assert sorted(map(repr, seen)) == shown
    stored = [search_config.Space(config.space).decode(trial.params)["x"] for trial in study.trials]
    assert list(map(repr, stored)) == list(map(repr, seen))
    assert sorted(repr(json.loads(json.dumps(v))) for v in seen) == shown
    numbers = search_config.Space({"x": [np.int64(1), np.bool_(True)]}).examples()
    assert [repr(one["x"]) for one in numbers] == ["1", "True"]


def test_size_of_a_search_space_is_its_number_of_points_or_none_if_infinite() -> None:
    steps = {"type": "float", "low": 0.0, "high": 1.0, "step": 0.25}
    assert search_config.Space({"x": steps, "y": [1, 2], "z": ENTRIES["task"]["depth"]}).size == 30
    assert search_config.Space(ENTRIES).size is None


def test_search_space_examples_contain_each_bound_and_each_choice() -> None:
    seen = list(search_config.Space(ENTRIES).examples())
    assert {example["task.arch.block/0"] for example in seen} == {"conv", "pool", None}
    assert {example["trainer.rate"] for example in seen} == {1e-4, 1e-1}


@pytest.mark.parametrize(
    ("entries", "error", "words"),
    [
        ({}, errors.ConfigValueError, "empty"),
        ({"x": 3}, errors.ConfigTypeError, "`x` is 3"),
        ({"x": {"type": "log_uniform", "low": 1, "high": 2}}, errors.UnknownNameError, "log: true"),
        ({"x": {"type": "float", "lo": 1, "high": 2}}, errors.UnknownKeyError, "`low`"),
        ({"x": {"type": "float", "low": 2.0, "high": 1.0}}, errors.ConfigValueError, "`x`"),
        ({"x": {"type": "float", "low": 1.0}}, errors.ConfigValueError, "`x`"),
        ({"x": {"type": "int", "low": 0, "high": 5, "step": 2}}, errors.ConfigValueError, "`x`"),
        ({"x": []}, errors.ConfigValueError, "`x`"),
    ],
)
def test_error_for_an_invalid_search_space_names_the_parameter(
    entries: dict, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        search_config.Space(entries)


def test_architecture_label_in_a_search_path_may_contain_spaces_and_slashes() -> None:
    assert search_config.path_of("task.arch.block 0/op") == ["task", "arch", "block 0/op"]
    assert search_config.path_of("task.routines[1].weight") == ["task", "routines", 1, "weight"]
