import pathlib

import pytest

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.common import errors
from official_lite.config import parsing
from official_lite.core import config_definitions, exp_factory
from official_lite.tools import config_sources
from tests import made_runs

NAME = "vision/digits_mlp"


def _changed(a: str, b: str) -> dict[str, tuple[object, object]]:
    found = config_sources.changes(config_sources.read(a), config_sources.read(b))
    return {change.path: (change.old, change.new) for change in found}


def _run(directory: pathlib.Path, **given: object) -> str:
    """A run of the experiment, in which `auto` has become `graph`."""
    params = exp_factory.get_exp_config(NAME)
    params.override({"trainer": given})
    fields = params.as_dict()
    fields["runtime"]["execution"] = "graph"
    parsing.serialize_config(config_definitions.ExperimentConfig(), str(directory))
    made_runs.make_run(
        directory / "run", config=_plain(fields), record={"params": {"runtime.execution": "auto"}}
    )
    return str(directory / "run")


def _plain(values: object) -> object:
    if isinstance(values, dict):
        return {name: _plain(value) for name, value in values.items()}
    return [*map(_plain, values)] if isinstance(values, list | tuple) else values


def test_run_agrees_with_what_it_was_given(tmp_path: pathlib.Path) -> None:
    assert _changed(NAME, _run(tmp_path)) == {}


def test_fields_that_differ_have_paths_and_both_values(tmp_path: pathlib.Path) -> None:
    assert _changed(NAME, _run(tmp_path, train_steps=7)) == {"trainer.train_steps": (600, 7)}
    changed = _changed("vision/digits_cnn", NAME)
    assert changed["task.model.units"] == ([128], [64, 64])


def test_file_says_only_what_it_says(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "few.yaml"
    file.write_text("trainer: {train_steps: 7, steps_per_loop: 100}\n")
    assert _changed(NAME, str(file)) == {"trainer.train_steps": (600, 7)}
    assert _changed(str(file), NAME) == {"trainer.train_steps": (7, 600)}
    assert _changed(_run(tmp_path), str(file)) == {"trainer.train_steps": (600, 7)}
    other = tmp_path / "other.yaml"
    other.write_text("trainer: {train_steps: 7}\n")
    assert _changed(str(file), str(other)) == {"trainer.steps_per_loop": (100, "(none)")}


def test_what_is_laid_over_an_experiment_is_in_its_config(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "few.yaml"
    file.write_text("trainer: {train_steps: 7}\n")
    sets = ["trainer.steps_per_loop=3"]
    trainer = config_sources.read(NAME, config_files=[str(file)], sets=sets).config["trainer"]
    assert (trainer["train_steps"], trainer["steps_per_loop"]) == (7, 3)
    with pytest.raises(errors.ConfigValueError, match="require an experiment, but"):
        config_sources.read(str(file), sets=sets)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vision/digits_mpl", "Did you mean `vision/digits_mlp`"),
        ("none.yaml", "Can't read the config file none.yaml"),
        ("tests", "is not a model directory"),
    ],
)
def test_what_is_nothing_is_refused(name: str, said: str) -> None:
    with pytest.raises(errors.ConfigError, match=said):
        config_sources.read(name)


def test_run_without_a_config_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(errors.ConfigValueError, match="can't be read"):
        config_sources.read(str(tmp_path))
