import pytest

from official_lite.common import errors, flags
from official_lite.common.flags import Mode


@pytest.mark.parametrize(
    ("mode", "trains", "evaluates", "evaluates_last"),
    [
        ("train", True, False, False),
        ("eval", False, True, True),
        ("train_and_eval", True, True, False),
        ("continuous_eval", False, True, True),
        ("continuous_train_and_eval", True, True, False),
        ("train_and_post_eval", True, True, True),
        ("search", False, False, False),
        ("predict", False, False, False),
    ],
)
def test_mode_says_what_a_run_does(
    mode: str, trains: bool, evaluates: bool, evaluates_last: bool
) -> None:
    parsed = flags.Mode.parse(mode)
    assert (parsed.trains, parsed.evaluates, parsed.evaluates_last) == (
        trains,
        evaluates,
        evaluates_last,
    )


def test_mode_is_still_the_text_that_it_was() -> None:
    assert Mode.TRAIN == "train"
    assert f"{Mode.TRAIN_AND_EVAL}" == "train_and_eval"


def test_unknown_mode_is_answered_with_the_nearest() -> None:
    with pytest.raises(errors.UnknownNameError, match="`train_and_eval`"):
        Mode.parse("train_and_evla")
