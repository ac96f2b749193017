import pytest
import yaml

from official_lite.common import errors
from official_lite.modeling.hyperparams import yaml_io


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a=1", {"a": 1}),
        ("a.b=1,c=[1,2],e='x,y'", {"a": {"b": 1}, "c": [1, 2], "e": "x,y"}),
        (" a = 1 , b = 1e-3, ", {"a": 1, "b": 1e-3}),
        ("d[1]=3,d[0]=2", {"d": {0: 2, 1: 3}}),
        ("a.r[0].w=2,a.r[0].n=x", {"a": {"r": {0: {"w": 2, "n": "x"}}}}),
        ("a=gs://bucket/x-*.yaml,b=off", {"a": "gs://bucket/x-*.yaml", "b": "off"}),
        ("a='it''s',b=\"q\\\"q\"", {"a": "it's", "b": 'q"q'}),
        ("a=,b={}", {"a": None, "b": {}}),
        ("a=x=y", {"a": "x=y"}),
    ],
)
def test_the_syntax(text, parsed):
    assert yaml_io.is_csv(text)
    assert yaml_io.parse_csv(text) == parsed


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        ("a=1,b:2", 4, "with `=` instead of `:`"),
        ("a=1,path=/x,y", 12, "Put a value that contains a comma in quotes"),
        ("a=[1,2", 0, "Close the quote or the bracket"),
        ("a='x,b=1", 0, "Close the quote or the bracket"),
        ("a=1,b=[[1],[2]]", 4, "A list in a list"),
    ],
)
def test_malformed_text_is_shown_with_the_position(text, position, hint):
    with pytest.raises(errors.ConfigValueError) as caught:
        yaml_io.parse_csv(text)
    first, shown, pointer, advice = str(caught.value).splitlines()
    assert first == f"Malformed override at position {position}:"
    assert shown.strip() == text
    assert pointer.index("^") == 2 + position
    assert hint in advice


@pytest.mark.parametrize("text", ["a=1,a=2", "a=1,a.b=2", "a.b=1,a=2", "a[0]=1,a.b=2"])
def test_contradictions_are_refused(text):
    with pytest.raises(errors.ConfigValueError, match="The override sets"):
        yaml_io.parse_csv(text)


@pytest.mark.parametrize("text", ["a=1, b.c='x, y', b.d=[1,2]", "b[1]=x,b[0]=y", "a=it's: fine"])
def test_json_form_says_the_same_in_yaml(text):
    rewritten = yaml.safe_load(yaml_io.nested_csv_str_to_json_str(text))
    listed = {
        key: list(dict(sorted(v.items())).values()) if 0 in v else v
        for key, v in yaml_io.parse_csv(text).items()
        if isinstance(v, dict)
    }
    assert rewritten == {**yaml_io.parse_csv(text), **listed}


def test_json_form_needs_all_elements_of_a_list():
    with pytest.raises(errors.ConfigValueError, match="is missing in"):
        yaml_io.nested_csv_str_to_json_str("a[0]=1,a[2]=3")
    assert yaml_io.nested_csv_str_to_json_str("") == ""


def test_paths():
    assert yaml_io.parse_path("a.b[0][1].c") == ["a", "b", 0, 1, "c"]
    for text in ("", "a..b", "a.", "[0]", "a[x]", "a b"):
        with pytest.raises(errors.ConfigValueError, match="is not a path"):
            yaml_io.parse_path(text)
