import pytest

from official_lite.common import errors
from official_lite.modeling.hyperparams import overrides

HERE = overrides.Cursor("Top", "a")


def test_list_items_replace_and_append():
    items = overrides.ListItems({2: "new", 0: "changed"})
    assert items.over(["x", "y"], HERE) == [("changed", "x"), ("y", "y"), ("new", None)]
    assert overrides.ListItems({0: 1}).over(None, HERE) == [(1, None)]


def test_index_beyond_the_end_is_refused():
    with pytest.raises(errors.ConfigValueError, match=r"`a\[3\]` of Top: the list has 1 elements"):
        overrides.ListItems({3: 1}).over(["x"], HERE)


def test_cursor_names_path_and_line():
    mapping = overrides.LocatedDict("exp.yaml")
    mapping["b"] = 1
    mapping.lines["b"] = 7
    assert str(HERE.key("b", mapping).item(0)) == "`a.b[0]` of Top (exp.yaml:7)"
    assert str(overrides.Cursor("Top")) == "Top"


def test_renamed_mapping_keeps_its_lines():
    mapping = overrides.LocatedDict("a.yaml")
    mapping["old"] = 1
    mapping.lines["old"] = 7
    renamed = overrides.rename(mapping, {"old": "new"}, overrides.Cursor("C"))
    assert renamed == {"new": 1}
    assert renamed.lines == {"new": 7}
    assert overrides.rename({"x": 1}, {"old": "new"}, overrides.Cursor("C")) == {"x": 1}


def test_two_names_of_one_field_are_refused():
    with pytest.raises(errors.ConfigValueError, match="`a` and `b` are the same"):
        overrides.rename({"a": 1, "b": 2}, {"a": "c", "b": "c"}, overrides.Cursor("C"))
