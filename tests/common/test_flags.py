import pytest
from absl import flags as absl_flags

from official_lite.common import flags


def test_defining_twice_changes_nothing() -> None:
    flags.define_flags()
    before = set(absl_flags.FLAGS)
    flags.define_flags()
    assert set(absl_flags.FLAGS) == before


def test_the_model_gardens_flags_are_there() -> None:
    flags.define_flags()
    wanted = {"experiment", "mode", "model_dir", "config_file", "params_override", "gin_file"}
    assert wanted | {"gin_params", "tpu", "tf_data_service"} <= set(absl_flags.FLAGS)
    assert {"dry_run", "fast_dev_run"} <= set(absl_flags.FLAGS)


def test_no_mode_is_listed_that_does_not_run() -> None:
    assert "train_and_validate" not in flags.MODES


def test_home_directory_is_expanded_in_arguments_but_not_in_those_of_another_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    given = ["train", "--model_dir=~/run", "~/run", "--set=a=~/b", "--", "--model_dir=~/other"]
    expected = ["train", "--model_dir=/home/me/run", "/home/me/run", "--set=a=~/b"]
    assert flags.expand_home(given) == [*expected, "--", "--model_dir=~/other"]
