from official_lite.common import suggestions


def test_suggestions_begin_with_the_nearest_name() -> None:
    known = ["train_steps", "validation_steps", "steps_per_loop"]
    assert suggestions.nearest("trian_steps", known)[0] == "train_steps"


def test_name_that_differs_only_in_case_is_suggested() -> None:
    assert suggestions.nearest("ADAMW", ["adamw", "sgd"]) == ["adamw"]


def test_did_you_mean_lists_the_known_names_if_none_is_similar() -> None:
    assert suggestions.did_you_mean("zzz", ["sgd", "adam"]) == "Known: `adam`, `sgd`."


def test_did_you_mean_returns_an_empty_string_without_known_names() -> None:
    assert suggestions.did_you_mean("x", []) == ""
