import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import sys

import pytest

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.common import errors
from official_lite.config import parsing
from official_lite.core import config_definitions, exp_factory, trainer_factory
from official_lite.tools import sources
from tests import made_runs


def test_config_of_a_run_is_found_by_any_path_in_its_directory(read_run, trained):
    for inside in ("", "ckpt-4", "ckpt-4.index", "checkpoint"):
        source = read_run(os.path.join(trained, inside), "--set=trainer.train_steps=9")
        assert source.run_dir == trained
        trainer = source.params.trainer
        assert (source.params.task.units, trainer.train_steps) == (3, 9)
        assert trainer.checkpoint_interval == 2


def test_config_of_a_run_includes_the_overrides_of_its_command(read_run, train_run):
    run_dir = train_run("task.units=2")
    assert read_run(run_dir).params.task.units == 2


def test_read_params_finds_a_registered_experiment_by_its_name(read_run):
    source = read_run("vision/digits_mlp", "--set=task.model.units=[3]")
    assert (source.run_dir, source.params.task.model.units) == ("", (3,))
    with pytest.raises(errors.UnknownNameError, match="Did you mean `vision/digits_mlp`"):
        read_run("vision/digit_mlp")


def test_run_without_a_recorded_experiment_requires_the_experiment_flag(
    read_run, trained, tmp_path
):
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


CODE = {
    "--import=gone/task.py": "--import={directory}/task.py",
    "-gin_file=gone/my.gin": "--gin_file={directory}/my.gin",
    "--gin_params=train_lib.x = @os.abort()": "--gin_params=Trainer.train = True",
    "--experiment=gone.py:experiment": "--experiment=tests/tools",
}


def test_reading_a_run_started_with_code_flags_raises_unless_they_are_passed_again(
    read_run, trained, tmp_path
):
    shutil.copy(os.path.join(trained, "params.yaml"), tmp_path)
    for name in ("task.py", "my.gin"):
        (tmp_path / name).touch()
    for recorded, given in CODE.items():
        argv = ["train.py", "--experiment=tests/tools", recorded]
        (tmp_path / "run.json").write_text(json.dumps({"argv": argv}))
        flag, _, value = recorded.partition("=")
        repeated = f"pass --{flag.lstrip('-')}={shlex.quote(value)}"
        with pytest.raises(errors.ConfigValueError, match=re.escape(repeated)):
            read_run(tmp_path)
        assert read_run(tmp_path, given.format(directory=tmp_path)).params.task.units == 3


def test_gin_flags_are_not_applied_again_to_the_saved_config_of_a_run(read_run, trained, tmp_path):
    # The command line of the run has replaced the number of steps that gin had set.
    binding = "trainer/params.train_steps = 100"
    command = ["train.py", "--experiment=tests/tools", f"--gin_params={binding}"]
    shutil.copy(os.path.join(trained, "params.yaml"), tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"argv": command}))
    assert read_run(tmp_path, f"--gin_params={binding}").params.trainer.train_steps == 6
    assert read_run("tests/tools", f"--gin_params={binding}").params.trainer.train_steps == 100


def test_class_in_params_yaml_is_imported_only_if_a_set_flag_names_it(read_run, trained, tmp_path):
    (tmp_path / "params.yaml").write_text("trainer: {name: 'no_such:Trainer'}\n")
    for arguments, problem in (((), "can run code"), (("--set=trainer.name=no_such:Trainer",), "")):
        params = read_run(tmp_path, "--experiment=tests/tools", *arguments).params
        with pytest.raises(errors.ConfigError, match=problem or "there is no module `no_such`"):
            trainer_factory.get_trainer_cls(params)


NAME = "vision/digits_mlp"


def _changed(a: str, b: str) -> dict[str, tuple[object, object]]:
    found = sources.changes(sources.read_config(a), sources.read_config(b))
    return {change.path: (change.old, change.new) for change in found}


def _run(directory: pathlib.Path, **given: object) -> str:
    """Make a run of the experiment in which the execution mode `auto` was resolved to `graph`."""
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


def test_resolved_execution_mode_is_not_reported_as_a_config_change(
    tmp_path: pathlib.Path,
) -> None:
    assert _changed(NAME, _run(tmp_path)) == {}


def test_config_changes_contain_the_path_and_both_values_of_each_field(
    tmp_path: pathlib.Path,
) -> None:
    assert _changed(NAME, _run(tmp_path, train_steps=7)) == {"trainer.train_steps": (600, 7)}
    changed = _changed("vision/digits_cnn", NAME)
    assert changed["task.model.units"] == ([128], [64, 64])


def test_fields_missing_from_a_config_file_are_not_reported_as_changes(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "few.yaml"
    file.write_text("trainer: {train_steps: 7, steps_per_loop: 100}\n")
    assert _changed(NAME, str(file)) == {"trainer.train_steps": (600, 7)}
    assert _changed(str(file), NAME) == {"trainer.train_steps": (7, 600)}
    assert _changed(_run(tmp_path), str(file)) == {"trainer.train_steps": (600, 7)}
    other = tmp_path / "other.yaml"
    other.write_text("trainer: {train_steps: 7}\n")
    assert _changed(str(file), str(other)) == {"trainer.steps_per_loop": (100, "(none)")}


def test_read_config_raises_if_overrides_are_passed_for_a_config_file(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "few.yaml"
    file.write_text("trainer: {train_steps: 7}\n")
    sets = ["trainer.steps_per_loop=3"]
    trainer = sources.read_config(NAME, config_files=[str(file)], sets=sets).config["trainer"]
    assert (trainer["train_steps"], trainer["steps_per_loop"]) == (7, 3)
    with pytest.raises(errors.ConfigValueError, match="require an experiment, but"):
        sources.read_config(str(file), sets=sets)


def test_reading_the_config_of_a_run_without_params_yaml_raises(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(errors.ConfigValueError, match="can't be read"):
        sources.read_config(str(tmp_path))


REGISTRATION = """
from official_lite.core import config_definitions, exp_factory
exp_factory.register_config_factory("tests/{name}")(config_definitions.ExperimentConfig)
"""


@pytest.fixture
def another_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the directory of another project, with nothing registered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "registry_imports", raising=False)
    monkeypatch.setattr(exp_factory, "_REGISTERED_CONFIGS", {})


@pytest.mark.usefixtures("another_directory")
def test_load_registrations_imports_the_registry_imports_file_and_named_modules(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "registry_imports.py").write_text(REGISTRATION.format(name="here"))
    (tmp_path / "mine.py").write_text(REGISTRATION.format(name="mine"))
    parser = argparse.ArgumentParser()
    sources.add_import_argument(parser)
    try:
        sources.load_registrations(parser.parse_args(["--import=mine.py"]).imports)
    finally:
        sys.modules.pop("registry_imports", None)
    assert {"tests/here", "tests/mine"} <= {*exp_factory.list_experiments()}


@pytest.mark.usefixtures("another_directory")
def test_load_registrations_accepts_a_directory_without_registry_imports() -> None:
    sources.load_registrations([])
    with pytest.raises(errors.UnknownNameError, match="no module"):
        sources.load_registrations(["no_such_module"])
