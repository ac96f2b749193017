import json
import os
import pathlib
import re
import shlex
import shutil

import pytest

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.common import errors
from official_lite.config import parsing
from official_lite.core import config_definitions, exp_factory, trainer_factory
from official_lite.tools import sources
from tests import made_runs


@pytest.mark.parametrize("inside", ["", "ckpt-4", "ckpt-4.index", "checkpoint"])
def test_config_of_a_run_by_anything_in_its_folder(read_run, trained, inside):
    source = read_run(os.path.join(trained, inside), "--set=trainer.train_steps=9")
    assert source.run_dir == trained
    assert source.params.task.units == 3
    assert source.params.trainer.train_steps == 9
    assert source.params.trainer.checkpoint_interval == 2


def test_what_the_run_was_started_with_counts(read_run, train_run):
    run_dir = train_run("task.units=2")
    assert read_run(run_dir).params.task.units == 2


def test_experiment_by_its_name(read_run):
    source = read_run("vision/digits_mlp", "--set=task.model.units=[3]")
    assert (source.run_dir, source.params.task.model.units) == ("", (3,))
    with pytest.raises(errors.UnknownNameError, match="Did you mean `vision/digits_mlp`"):
        read_run("vision/digit_mlp")


def test_run_that_does_not_name_its_experiment_has_to_be_told(read_run, trained, tmp_path):
    shutil.copy(os.path.join(trained, "params.yaml"), tmp_path)
    with pytest.raises(errors.ConfigValueError, match="Pass it as --experiment"):
        read_run(tmp_path)
    assert read_run(tmp_path, "--experiment=tests/tools").params.task.units == 3
    for record in ({"argv": ["mine.py", "-experiment=tests/tools"]}, {"argv": None}):
        (tmp_path / "run.json").write_text(json.dumps(record))
        if record["argv"]:
            assert read_run(tmp_path).params.task.units == 3
        else:
            with pytest.raises(errors.ConfigValueError, match=r"run.json can't be read"):
                read_run(tmp_path)


@pytest.mark.parametrize(
    ("recorded", "given"),
    [
        ("--import=gone/task.py", "--import={directory}/task.py"),
        ("-gin_file=gone/my.gin", "--gin_file={directory}/my.gin"),
        ("--gin_params=train_lib.x = @os.abort()", "--gin_params=Trainer.train = True"),
        ("--experiment=gone.py:experiment", "--experiment=tests/tools"),
    ],
)
def test_code_that_a_run_was_started_with_is_given_again(
    read_run, trained, tmp_path, recorded, given
):
    shutil.copy(os.path.join(trained, "params.yaml"), tmp_path)
    argv = ["train.py", "--experiment=tests/tools", recorded]
    (tmp_path / "run.json").write_text(json.dumps({"argv": argv}))
    flag, _, value = recorded.partition("=")
    repeated = f"pass --{flag.lstrip('-')}={shlex.quote(value)}"
    with pytest.raises(errors.ConfigValueError, match=re.escape(repeated)):
        read_run(tmp_path)
    for name in ("task.py", "my.gin"):
        (tmp_path / name).touch()
    assert read_run(tmp_path, given.format(directory=tmp_path)).params.task.units == 3


def test_params_of_a_run_name_no_code_that_set_does_not_name(read_run, trained, tmp_path):
    (tmp_path / "params.yaml").write_text("trainer: {name: 'no_such:Trainer'}\n")
    for arguments, problem in (((), "can run code"), (("--set=trainer.name=no_such:Trainer",), "")):
        params = read_run(tmp_path, "--experiment=tests/tools", *arguments).params
        with pytest.raises(errors.ConfigError, match=problem or "there is no module `no_such`"):
            trainer_factory.get_trainer_cls(params)


def test_folder_that_is_no_run_is_refused(read_run, tmp_path):
    with pytest.raises(errors.ConfigValueError, match=r"nor its parents contain params\.yaml"):
        read_run(tmp_path)


NAME = "vision/digits_mlp"


def _changed(a: str, b: str) -> dict[str, tuple[object, object]]:
    found = sources.changes(sources.read_config(a), sources.read_config(b))
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
    trainer = sources.read_config(NAME, config_files=[str(file)], sets=sets).config["trainer"]
    assert (trainer["train_steps"], trainer["steps_per_loop"]) == (7, 3)
    with pytest.raises(errors.ConfigValueError, match="require an experiment, but"):
        sources.read_config(str(file), sets=sets)


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
        sources.read_config(name)


def test_run_without_a_config_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(errors.ConfigValueError, match="can't be read"):
        sources.read_config(str(tmp_path))
