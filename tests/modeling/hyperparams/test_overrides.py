import pytest

from official_lite.common import errors
from official_lite.modeling.hyperparams import yaml_io

HERE = yaml_io.Cursor("Top", "a")


def test_list_items_replace_and_append():
    items = yaml_io.ListItems({2: "new", 0: "changed"})
    assert items.over(["x", "y"], HERE) == [("changed", "x"), ("y", "y"), ("new", None)]
    assert yaml_io.ListItems({0: 1}).over(None, HERE) == [(1, None)]


def test_index_beyond_the_end_is_refused():
    with pytest.raises(errors.ConfigValueError, match=r"`a\[3\]` of Top: the list has 1 elements"):
        yaml_io.ListItems({3: 1}).over(["x"], HERE)


def test_cursor_names_path_and_line():
    mapping = yaml_io.LocatedDict("exp.yaml")
    mapping["b"] = 1
    mapping.lines["b"] = 7
    assert str(HERE.key("b", mapping).item(0)) == "`a.b[0]` of Top (exp.yaml:7)"
    assert str(yaml_io.Cursor("Top")) == "Top"


def test_renamed_mapping_keeps_its_lines():
    mapping = yaml_io.LocatedDict("a.yaml")
    mapping["old"] = 1
    mapping.lines["old"] = 7
    renamed = yaml_io.rename(mapping, {"old": "new"}, yaml_io.Cursor("C"))
    assert renamed == {"new": 1}
    assert renamed.lines == {"new": 7}
    assert yaml_io.rename({"x": 1}, {"old": "new"}, yaml_io.Cursor("C")) == {"x": 1}


def test_two_names_of_one_field_are_refused():
    with pytest.raises(errors.ConfigValueError, match="`a` and `b` are the same"):
        yaml_io.rename({"a": 1, "b": 2}, {"a": "c", "b": "c"}, yaml_io.Cursor("C"))
