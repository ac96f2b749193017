import pytest
from absl import flags as absl_flags

from official_lite.common import errors, flags


def test_second_call_of_define_flags_defines_no_further_flags() -> None:
    flags.define_flags()
    before = set(absl_flags.FLAGS)
    flags.define_flags()
    assert set(absl_flags.FLAGS) == before


def test_define_flags_includes_the_model_garden_flags() -> None:
    flags.define_flags()
    wanted = {"experiment", "mode", "model_dir", "config_file", "params_override", "gin_file"}
    assert wanted | {"gin_params", "tpu", "tf_data_service"} <= set(absl_flags.FLAGS)
    assert {"dry_run", "fast_dev_run"} <= set(absl_flags.FLAGS)


def test_tilde_in_arguments_is_expanded_only_before_a_double_dash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    given = ["train", "--model_dir=~/run", "~/run", "--set=a=~/b", "--", "--model_dir=~/other"]
    expected = ["train", "--model_dir=/home/me/run", "/home/me/run", "--set=a=~/b"]
    assert flags.expand_home(given) == [*expected, "--", "--model_dir=~/other"]


@pytest.mark.parametrize(
    ("mode", "trains", "evaluates", "evaluates_last"),
    [
        ("train", True, False, False),
        ("eval", False, True, True),
        ("train_and_eval", True, True, False),
        ("continuous_eval", False, True, True),
        ("continuous_train_and_eval", True, True, False),
        ("train_and_post_eval", True, True, True),
        ("test", False, True, True),
        ("search", False, False, False),
        ("predict", False, False, False),
    ],
)
def test_each_mode_defines_whether_a_run_trains_and_whether_it_evaluates(
    mode: str, trains: bool, evaluates: bool, evaluates_last: bool
) -> None:
    parsed = flags.Mode.parse(mode)
    assert (parsed.trains, parsed.evaluates, parsed.evaluates_last) == (
        trains,
        evaluates,
        evaluates_last,
    )


def test_mode_compares_and_formats_like_its_string_value() -> None:
    assert flags.Mode.TRAIN == "train"
    assert f"{flags.Mode.TRAIN_AND_EVAL}" == "train_and_eval"


def test_error_for_an_unknown_mode_suggests_the_nearest_one() -> None:
    with pytest.raises(errors.UnknownNameError, match="`train_and_eval`"):
        flags.Mode.parse("train_and_evla")
