"""The resolved config of each registered experiment is in files, so that reviews show changes.

`golden/default.yaml` contains the values that most experiments share. The file of an experiment
contains only what differs. Mappings are merged key by key, and new keys come after the default's.
Any other value, also a list, replaces the default's value. So does a mapping that contains
`(whole): true`. A mapping is written whole if its config lacks a key of the default's mapping, or
orders the keys differently.

To accept a change, run `python -m tests.experiments.test_golden_configs`, which rewrites the files
of the experiments. If a change affects most of them, edit `golden/default.yaml` first.
"""

import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.config import gin_config
from official_lite.core import exp_factory, train_utils
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import yaml_io

GOLDEN = pathlib.Path(__file__).parent / "golden"
DEFAULT = GOLDEN / "default.yaml"
DOMAINS = ("language/", "nas/", "recommendation/", "sequence/", "tabular/", "vision/")
NAMES = [name for name in exp_factory.list_experiments() if name.startswith(DOMAINS)]

# Not the name of any field, because it is not an identifier.
WHOLE = "(whole)"


def _path(name: str) -> pathlib.Path:
    return GOLDEN / (name.replace("/", "_") + ".yaml")


def _merge(default: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config that a golden file describes."""
    if WHOLE in changes:
        return {key: value for key, value in changes.items() if key != WHOLE}
    merged = {**default, **changes}
    for key in default.keys() & changes.keys():
        if isinstance(default[key], Mapping) and isinstance(changes[key], Mapping):
            merged[key] = _merge(default[key], changes[key])
    return merged


def _changes(default: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a golden file, from which `_merge` restores the config."""
    changes = {}
    for key, value in config.items():
        old = default.get(key, ...)
        # Texts also tell 1 from 1.0 and from True, and one order of keys from another.
        if repr(value) != repr(old):
            nested = isinstance(value, Mapping) and isinstance(old, Mapping)
            changes[key] = _changes(old, value) if nested else value
    restored = list(_merge(default, changes)) == list(config)
    return changes if restored else {WHOLE: True, **config}


@pytest.mark.parametrize("name", NAMES)
def test_experiment_config_matches_its_golden_file(name: str) -> None:
    config = exp_factory.get_exp_config(name)
    config.validate()
    golden = _merge(yaml_io.read_yaml(DEFAULT), yaml_io.read_yaml(_path(name)))
    difference = "\n".join(hyperparams.diff(golden, config))
    assert train_utils.to_yaml(config) == yaml_io.to_yaml(golden), difference


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES)
def test_experiment_config_round_trips_through_yaml_and_gin(
    name: str, tmp_path: pathlib.Path
) -> None:
    config, again = exp_factory.get_exp_config(name), exp_factory.get_exp_config(name)
    hyperparams.save_params_dict_to_yaml(config, tmp_path / "params.yaml")
    hyperparams.override_params_dict(again, str(tmp_path / "params.yaml"), is_strict=True)
    assert again == config
    gin_config.parse_gin([], gin_config.operative_config(config).splitlines())
    assert gin_config.apply_bindings(exp_factory.get_exp_config(name)) == config


def test_every_experiment_config_is_built_without_importing_tensorflow() -> None:
    code = (
        "import sys, registry_imports; from official_lite.core import exp_factory\n"
        "for name in exp_factory.list_experiments(): exp_factory.get_exp_config(name).validate()\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_golden_files_exist_for_exactly_the_registered_experiments() -> None:
    assert sorted(GOLDEN.glob("*.yaml")) == sorted([DEFAULT, *map(_path, NAMES)])


if __name__ == "__main__":
    default = yaml_io.read_yaml(DEFAULT)
    for experiment in NAMES:
        text = train_utils.to_yaml(exp_factory.get_exp_config(experiment))
        changes = _changes(default, yaml_io.parse_yaml(text, experiment))
        _path(experiment).write_text(yaml_io.to_yaml(changes))
