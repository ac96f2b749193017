"""Config text: YAML, overrides such as `a.b=1`, and the positions that errors name."""

import contextlib
import math
import os
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from official_lite.common import errors, files
from official_lite.modeling.hyperparams import yaml_io

HERE = yaml_io.Cursor("Top", "a")


def parse(text):
    return yaml_io.parse_yaml(text, "exp.yaml")


def resolve(text):
    return yaml_io.resolve_scalar(text, "here")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("null", None),
        ("~", None),
        ("true", True),
        ("False", False),
        ("7", 7),
        ("-0", 0),
        ("+12", 12),
        (str(2**63 - 1), 2**63 - 1),
        (str(-(2**63)), -(2**63)),
        ("1e-3", 1e-3),
        ("1.5e6", 1.5e6),
        ("1e6", 1e6),
        ("-1.e-3", -1e-3),
        (".5", 0.5),
        ("-.inf", -math.inf),
    ],
)
def test_plain_yaml_scalar_is_resolved_to_its_type(text, value):
    resolved = resolve(text)
    assert resolved == value
    assert type(resolved) is type(value)
    assert not yaml_io.is_plain_text(text)


@pytest.mark.parametrize(
    "text",
    ["off", "on", "yes", "no", "12:30", "1_000", "2024-01-01", "0x1F", "1.2.3", "None", "e5", "."],
)
def test_yaml_text_that_is_not_null_a_boolean_or_a_number_stays_a_string(text):
    assert resolve(text) == text
    assert yaml_io.is_plain_text(text)


def test_yaml_nan_is_a_float() -> None:
    assert math.isnan(resolve(".nan"))


# The parser, the invalid text, and the words that the message must contain.
REFUSALS = [
    *((resolve, text, f"here: {text}") for text in ("010", "-007", "00")),
    *((resolve, text, "64 bits") for text in (str(2**63), "9" * 23, "9" * 5000)),
    (parse, "a: 1\nb: 2\na: 3\n", "exp.yaml:3: the key 'a'"),
    (parse, "a:\n  b: 010\n", "exp.yaml:2: 010"),
    (parse, "- 1\n- 2\n", "exp.yaml: a list"),
    (parse, "just text\n", "exp.yaml: the value 'just text'"),
    (parse, "a: 1\n---\nb: 2\n", "exp.yaml:2: a second document"),
    (parse, "a:\n\tb: 1\n", "exp.yaml:2: found a tab"),
    (parse, "a: [1, 2\n", "exp.yaml:2: expected ',' or ']'"),
    (parse, "a: *missing\n", "exp.yaml:1: found undefined alias"),
    (parse, "1: a\n", "exp.yaml:1: the key 1"),
    (parse, "? [a]\n: 1\n", "exp.yaml:1: the key"),
    (parse, "a: 1\nb: \x01\n", r"exp.yaml:2: the character '\x01'"),
    (parse, 'a: "\\ud800"\n', "exp.yaml:1: the text contains half of a surrogate pair"),
    (parse, 'a: "\\UFFFFFFFF"\n', "escape sequence"),
    (parse, "<<: 5\n", "`<<`"),
    (parse, "a: {workspace}/a.py:B", "exp.yaml:1"),
    (parse, "a: [" + "1," * 50_001 + "]", "50,000 values"),
    *(
        (parse, f"b: 1\na: {tagged}\n", "exp.yaml:2: the tag !")
        for tagged in (
            "!!python/object/apply:os.system [touch x]",
            "!!python/name:os.system",
            "!!python/tuple 5",
            "!!str 5",
            "! 1",
        )
    ),
    (yaml_io.nested_csv_str_to_json_str, "a[0]=1,a[2]=3", "a[0]=1,a[2]=3"),
    *((yaml_io.parse_csv, text, "`a") for text in ("a=1,a=2", "a=1,a.b=2", "a[0]=1,a.b=2")),
    *((yaml_io.parse_path, text, repr(text)) for text in ("", "a..b", "a.", "[0]", "a[x]", "a b")),
    (lambda index: yaml_io.ListItems({index: 1}).over(["x"], HERE), 3, "`a[3]` of Top"),
    (lambda keys: yaml_io.rename(dict.fromkeys(keys), {"a": "c", "b": "c"}, HERE), "ab", "`b`"),
]


@pytest.mark.parametrize(("read", "text", "named"), REFUSALS)
def test_error_for_invalid_config_text_names_the_location_or_the_problem(read, text, named) -> None:
    with pytest.raises(errors.ConfigValueError) as caught:
        read(text)
    assert named in str(caught.value)


def test_ambiguous_scalars_of_yaml_1_1_are_strings():
    text = "a: 1e-3\nb: 1.5e6\nc: off\nd: 12:30\ne: 2024-01-01\nf: 1_000\ng: '5'\nh: True\non: 1\n"
    values = [1e-3, 1.5e6, "off", "12:30", "2024-01-01", "1_000", "5", True]
    assert parse(text) == dict(zip("abcdefgh", values, strict=True)) | {"on": 1}


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "---\n", "null\n"])
def test_empty_yaml_file_is_an_empty_override(text):
    assert parse(text) == {}


def test_python_tuple_tag_of_the_model_garden_is_read_as_a_list():
    assert parse("a: !!python/tuple\n- 1\n- 2\n") == {"a": [1, 2]}


def test_yaml_anchors_and_merge_keys_are_resolved():
    parsed = parse("base: &base {a: 1, b: 2}\nother:\n  <<: *base\n  b: 3\n")
    assert parsed["other"] == {"a": 1, "b": 3}


def alias_bomb():
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    return "\n".join(["a0: &a0 [lol]", *levels])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (alias_bomb(), "the aliases expand to more than"),
        ("a: &x [*x]", "the aliases expand to more than"),
        ("a: " + "[" * 10_000, "deeper than 100 levels"),
        ("".join(" " * i + "a:\n" for i in range(1000)), "deeper than 100 levels"),
    ],
    ids=["aliases", "cycle", "flow depth", "block depth"],
)
def test_yaml_with_excessive_alias_expansion_or_nesting_is_refused_within_a_second(text, message):
    # Measure the CPU time of this thread only, because other threads may be running.
    start = time.thread_time()
    with pytest.raises(errors.ConfigValueError, match=message):
        parse(text)
    assert time.thread_time() - start < 1


def test_config_file_above_the_size_limit_is_refused_without_being_read(tmp_path):
    path = tmp_path / "huge.yaml"
    path.touch()
    os.truncate(path, 1 << 30)
    start = time.process_time()
    with pytest.raises(errors.ConfigValueError, match="larger than 1,048,576 bytes"):
        yaml_io.read_yaml(path)
    assert time.thread_time() - start < 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1".encode("utf-8-sig"), r"x\.yaml:1: the file starts with a byte order mark"),
        ("a: 1".encode("utf-16"), r"x\.yaml:1: the file starts with a byte order mark"),
        ("a: 1\nb: café".encode("latin-1"), r"x\.yaml:2: the byte 0xe9 is not UTF-8"),
        ("a: 1".encode("utf-16-le"), r"x\.yaml:1: the character '\\x00'"),
    ],
)
def test_config_files_that_are_not_plain_utf_8_are_refused(tmp_path, content, message):
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(errors.ConfigValueError, match=message):
        yaml_io.read_yaml(path)


def test_reading_a_missing_file_or_a_directory_as_yaml_raises_config_file_error(tmp_path):
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(yaml_io.ConfigFileError, match=str(path)):
            yaml_io.read_yaml(path)


def test_remote_config_file_is_read_through_tensorflow(tmp_path):
    path = f"file://{tmp_path}/remote.yaml"
    files.write_text(path, "a: 1\n")
    assert yaml_io.read_yaml(path) == {"a": 1}
    with pytest.raises(yaml_io.ConfigFileError, match=r"absent\.yaml"):
        yaml_io.read_yaml(f"file://{tmp_path}/absent.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("[1, 2e3]", [1, 2e3]),
        ("{a: off}", {"a": "off"}),
        ("'5'", "5"),
        ("a: b #c", "a: b #c"),
        ("{workspace}/a.py:B", "{workspace}/a.py:B"),
        ("{a: 1}", {"a": 1}),
    ],
)
def test_override_value_is_parsed_as_yaml(text, value):
    assert yaml_io.parse_value(text, "here") == value


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(
        ["off", "1e-3", "010", "12:30", "<<", "=", "!a", "&a", "- a", "a: b", "#", ""]
    )
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), values, max_size=5))
def test_yaml_round_trip_preserves_any_mapping(mapping):
    text = yaml_io.to_yaml(mapping)
    assert parse(text) == mapping
    assert yaml_io.to_yaml(parse(text)) == text


@given(st.text())
def test_yaml_parser_returns_a_dict_or_raises_config_value_error_for_any_text(text):
    with contextlib.suppress(errors.ConfigValueError):
        assert isinstance(parse(text), dict)


def test_pyyaml_reads_written_strings_back_as_strings():
    texts = ["off", "12:30", "2024-01-01", "1_000", "1e-3", "010"]
    assert yaml.safe_load(yaml_io.to_yaml({"a": texts})) == {"a": texts}


def test_writing_an_unsupported_value_to_yaml_raises_config_type_error():
    with pytest.raises(errors.ConfigTypeError, match="Can't write the value to a config file"):
        yaml_io.to_yaml({"a": object()})


def test_importing_yaml_io_does_not_change_the_behavior_of_pyyaml():
    assert yaml.safe_load("a: 1e-3") == {"a": "1e-3"}
    assert yaml.safe_dump({"a": [1]}) == "a:\n- 1\n"


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
def test_comma_separated_overrides_are_parsed(text, parsed):
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
def test_error_for_a_malformed_override_shows_its_position_and_a_hint(text, position, hint):
    with pytest.raises(errors.ConfigValueError) as caught:
        yaml_io.parse_csv(text)
    first, shown, pointer, advice = str(caught.value).splitlines()
    assert first == f"Malformed override at position {position}:"
    assert shown.strip() == text
    assert pointer.index("^") == 2 + position
    assert hint in advice


@pytest.mark.parametrize("text", ["a=1, b.c='x, y', b.d=[1,2]", "b[1]=x,b[0]=y", "a=it's: fine"])
def test_comma_separated_override_is_converted_to_equivalent_yaml(text):
    rewritten = yaml.safe_load(yaml_io.nested_csv_str_to_json_str(text))
    listed = {
        key: list(dict(sorted(v.items())).values()) if 0 in v else v
        for key, v in yaml_io.parse_csv(text).items()
        if isinstance(v, dict)
    }
    assert rewritten == {**yaml_io.parse_csv(text), **listed}


def test_config_path_is_split_into_names_and_indices() -> None:
    assert yaml_io.parse_path("a.b[0][1].c") == ["a", "b", 0, 1, "c"]


def test_list_override_by_index_replaces_or_appends_elements():
    items = yaml_io.ListItems({2: "new", 0: "changed"})
    assert items.over(["x", "y"], HERE) == [("changed", "x"), ("y", "y"), ("new", None)]
    assert yaml_io.ListItems({0: 1}).over(None, HERE) == [(1, None)]


def test_config_location_is_shown_with_field_path_config_name_file_and_line():
    mapping = yaml_io.LocatedDict("exp.yaml")
    mapping["b"] = 1
    mapping.lines["b"] = 7
    assert str(HERE.key("b", mapping).item(0)) == "`a.b[0]` of Top (exp.yaml:7)"
    assert str(yaml_io.Cursor("Top")) == "Top"


def test_renaming_yaml_keys_keeps_their_line_numbers():
    mapping = yaml_io.LocatedDict("a.yaml")
    mapping["old"] = 1
    mapping.lines["old"] = 7
    renamed = yaml_io.rename(mapping, {"old": "new"}, yaml_io.Cursor("C"))
    assert renamed == {"new": 1}
    assert renamed.lines == {"new": 7}
    assert yaml_io.rename({"x": 1}, {"old": "new"}, yaml_io.Cursor("C")) == {"x": 1}


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://me:se@cr:et@host/db", "postgresql://me:***@host/db"),
        ("https://:secret@host:80/a", "https://:***@host:80/a"),
        ("--set=x=mysql://me:secret@host", "--set=x=mysql://me:***@host"),
        ("https://host:80/a@b", "https://host:80/a@b"),
        ("mysql://me@host/db", "mysql://me@host/db"),
    ],
)
def test_mask_passwords_hides_only_the_passwords_in_urls(url: str, masked: str) -> None:
    assert yaml_io.mask_passwords(f"a {url} b") == f"a {masked} b"


@pytest.mark.parametrize(
    ("path", "flag"), [("a.yaml,b.yaml", "Repeat --config_file"), ("a.gin", "--gin_file")]
)
def test_error_for_a_gin_file_or_file_list_read_as_yaml_names_the_right_flag(tmp_path, path, flag):
    (tmp_path / "a.gin").write_text("TrainerConfig.train_steps = 10\n")
    with pytest.raises(errors.ConfigError, match=flag):
        yaml_io.read_yaml(tmp_path / path)
