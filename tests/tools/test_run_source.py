import json
import os
import re
import shlex
import shutil

import pytest

from official_lite.common import errors
from official_lite.core import trainer_factory


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
