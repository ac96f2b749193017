"""The block `search` of an experiment's config."""

import pytest

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.search import search_config
from tests.search import toys


def test_words_of_the_model_garden_are_directions_too() -> None:
    config = toys.config(metric=["accuracy", "loss"], direction=["higher", "lower"])
    assert config.directions == ["maximize", "minimize"]


def test_direction_has_no_default() -> None:
    with pytest.raises(errors.ConfigValueError, match="There is no default"):
        toys.config(direction="").validate()


@pytest.mark.parametrize(
    "fields",
    [
        {"metric": ["a", "b"], "direction": "minimize"},
        {"metric": ["a", "b"], "direction": ["minimize", "minimize"], "pruner": "median"},
        {"metric": ["a", "b"], "direction": ["minimize", "minimize"], "final_value": "best"},
        {"mode": "eval"},
        {"isolation": "container"},
        {"num_trials": 0},
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(errors.ConfigValueError):
        toys.config(**fields).validate()


def test_experiment_without_a_search_is_told_what_to_write() -> None:
    with pytest.raises(errors.ConfigValueError, match="Set its `space`"):
        search_config.search_config_of(cfg.ExperimentConfig())


def test_mistyped_key_is_answered_with_the_nearest_one() -> None:
    params = cfg.ExperimentConfig(search={"derection": "minimize"})
    with pytest.raises(errors.UnknownKeyError, match="`direction`"):
        search_config.search_config_of(params)


def test_strategy_has_arguments_or_none() -> None:
    assert search_config.entry_of(toys.config(strategy="tpe").strategy) == "tpe"
    named = {"name": "tpe", "n_startup_trials": 3}
    assert search_config.entry_of(toys.config(strategy=named).strategy) == named
