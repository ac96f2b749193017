import pytest

from official_lite.common import errors, nested_dict

LOGS = {"digits": {"accuracy": 0.9, "loss": 0.1}, "loss": 0.2}


def test_leaf_is_found_by_its_path() -> None:
    assert nested_dict.get_leaf_nested_dict(LOGS, ["digits", "accuracy"]) == 0.9


def test_unknown_path_names_the_nearest_key() -> None:
    with pytest.raises(errors.UnknownKeyError, match="`accuracy`"):
        nested_dict.get_leaf_nested_dict(LOGS, ["digits", "acuracy"])


def test_dictionary_is_not_a_leaf() -> None:
    with pytest.raises(KeyError, match="is a dictionary, not a leaf"):
        nested_dict.get_leaf_nested_dict(LOGS, ["digits"])


def test_leaves_of_a_nested_dict_are_cast_in_place() -> None:
    logs = {"a": {"b": "1"}, "c": "2"}
    assert nested_dict.cast_leaf_nested_dict(logs, int) is logs
    assert logs == {"a": {"b": 1}, "c": 2}


def test_filtering_keeps_the_structure_of_a_nested_dict() -> None:
    kept = nested_dict.filter_leaf_nested_dict(LOGS, lambda value: value > 0.15)
    assert kept == {"digits": {"accuracy": 0.9}, "loss": 0.2}


def test_nested_dictionary_becomes_flat() -> None:
    nested = {"a": 1, "b": {"c": [2], "d": {"e": 3}, "f": {}}, 4: {"g": None}}
    flat = {"a": 1, "b/c": [2], "b/d/e": 3, "4/g": None}
    assert nested_dict.flatten_nested_dict(nested, "/") == flat
    assert list(nested_dict.flatten_nested_dict(nested, ".")) == ["a", "b.c", "b.d.e", "4.g"]


def test_caller_decides_which_dictionaries_are_leaves() -> None:
    nested = {"a": {"type": "float"}, "b": {"c": {}}}
    assert nested_dict.flatten_nested_dict(
        nested, ".", lambda value: not isinstance(value, dict) or not value or "type" in value
    ) == {"a": {"type": "float"}, "b.c": {}}
