"""The resolved config of each registered experiment is in a file, so that reviews show changes.

To accept a change, run `python -m tests.experiments.test_golden_configs`.
"""

import pathlib

import pytest

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.config import gin_config
from official_lite.core import exp_factory, train_utils
from official_lite.modeling import hyperparams

GOLDEN = pathlib.Path(__file__).parent / "golden"
DOMAINS = ("language/", "nas/", "recommendation/", "sequence/", "tabular/", "vision/")
NAMES = [name for name in exp_factory.list_experiments() if name.startswith(DOMAINS)]


def _path(name: str) -> pathlib.Path:
    return GOLDEN / (name.replace("/", "_") + ".yaml")


@pytest.mark.parametrize("name", NAMES)
def test_experiment_config_matches_its_golden_file(name: str) -> None:
    config = exp_factory.get_exp_config(name)
    config.validate()
    assert train_utils.to_yaml(config) == _path(name).read_text()


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES)
def test_experiment_config_round_trips_through_yaml_and_gin(name: str) -> None:
    config, again = exp_factory.get_exp_config(name), exp_factory.get_exp_config(name)
    hyperparams.override_params_dict(again, str(_path(name)), is_strict=True)
    assert again == config
    gin_config.parse_gin([], gin_config.operative_config(config).splitlines())
    assert gin_config.apply_bindings(exp_factory.get_exp_config(name)) == config


def test_golden_files_exist_for_exactly_the_registered_experiments() -> None:
    assert sorted(GOLDEN.glob("*.yaml")) == sorted(_path(name) for name in NAMES)


if __name__ == "__main__":
    for experiment in NAMES:
        text = train_utils.to_yaml(exp_factory.get_exp_config(experiment))
        _path(experiment).write_text(text)
