import pytest

from official_lite.common import errors, nested_dict

LOGS = {"digits": {"accuracy": 0.9, "loss": 0.1}, "loss": 0.2}


def test_leaf_of_a_nested_dict_is_found_by_its_path() -> None:
    assert nested_dict.get_leaf_nested_dict(LOGS, ["digits", "accuracy"]) == 0.9


def test_error_for_an_unknown_nested_dict_path_suggests_the_nearest_key() -> None:
    with pytest.raises(errors.UnknownKeyError, match="`accuracy`"):
        nested_dict.get_leaf_nested_dict(LOGS, ["digits", "acuracy"])


def test_nested_dict_path_that_ends_at_a_dictionary_raises() -> None:
    with pytest.raises(KeyError, match="is a dictionary, not a leaf"):
        nested_dict.get_leaf_nested_dict(LOGS, ["digits"])


def test_leaves_of_a_nested_dict_are_cast_in_place() -> None:
    logs = {"a": {"b": "1"}, "c": "2"}
    assert nested_dict.cast_leaf_nested_dict(logs, int) is logs
    assert logs == {"a": {"b": 1}, "c": 2}


def test_filtering_keeps_the_structure_of_a_nested_dict() -> None:
    kept = nested_dict.filter_leaf_nested_dict(LOGS, lambda value: value > 0.15)
    assert kept == {"digits": {"accuracy": 0.9}, "loss": 0.2}


def test_flatten_nested_dict_joins_the_keys_of_each_path() -> None:
    nested = {"a": 1, "b": {"c": [2], "d": {"e": 3}, "f": {}}, 4: {"g": None}}
    flat = {"a": 1, "b/c": [2], "b/d/e": 3, "4/g": None}
    assert nested_dict.flatten_nested_dict(nested, "/") == flat
    assert list(nested_dict.flatten_nested_dict(nested, ".")) == ["a", "b.c", "b.d.e", "4.g"]


def test_predicate_decides_which_dictionaries_flatten_nested_dict_keeps_as_leaves() -> None:
    nested = {"a": {"type": "float"}, "b": {"c": {}}}
    assert nested_dict.flatten_nested_dict(
        nested, ".", lambda value: not isinstance(value, dict) or not value or "type" in value
    ) == {"a": {"type": "float"}, "b.c": {}}
