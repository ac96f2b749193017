from official_lite.common import suggestions


def test_nearest_comes_first() -> None:
    known = ["train_steps", "validation_steps", "steps_per_loop"]
    assert suggestions.nearest("trian_steps", known)[0] == "train_steps"


def test_case_does_not_hide_a_match() -> None:
    assert suggestions.nearest("ADAMW", ["adamw", "sgd"]) == ["adamw"]


def test_all_names_are_shown_when_none_is_near() -> None:
    assert suggestions.did_you_mean("zzz", ["sgd", "adam"]) == "Known: `adam`, `sgd`."


def test_nothing_is_said_when_nothing_is_known() -> None:
    assert suggestions.did_you_mean("x", []) == ""
